"""Initialization of a student: from its teacher's layers, a preset, or a pretrained model.

layers=6     evenly spaced layers of the teacher, with its embeddings and heads (Sanh et al., 2019)
first=6      the lower layers of the teacher (Sun et al., 2019)
shared=128   one layer shared by all depths, the mean of the teacher's, with embeddings of this width (Lan et al., 2020)
NAME         a preset, randomly initialized, with the teacher's tokenizer; or a pretrained run or model folder
"""

from __future__ import annotations

import re
from pathlib import Path

from pretune.backbones.pruned_shape import prune_layers
from pretune.compression.parameter_sharing import convert_to_albert
from pretune.compression.pruning import editable_copy, update_config
from pretune.models.create_model import make_model
from pretune.models.loading import load_model
from pretune.models.model import Model
from pretune.models.name_resolution import find_folder
from pretune.models.presets import is_preset
from pretune.runtime.errors import PretuneError
from pretune.runtime.output_paths import intermediate_folder
from pretune.training.run_folder import finish_run, start_run

_CUT = re.compile(r"(layers|first|shared)=(\d+)")


def parse_student(student: str) -> tuple[str, int] | None:
    """Return (method, number) if --student derives the student from its teacher, or None if it names a model."""
    cut = _CUT.fullmatch(student.replace(" ", ""))
    if cut is None and "=" in student and not Path(student).exists():
        raise PretuneError(
            f"--student {student}: unknown student; give layers=N (N evenly spaced layers of the teacher), first=N (its N lowest "
            "layers), shared=N (one shared layer with embeddings of width N), a preset, or a model folder"
        )
    return (cut[1], int(cut[2])) if cut else None


def student_depth(student: str, teacher: Model) -> int:
    """Return the number of layers of the student that --student describes, given its teacher."""
    cut = parse_student(student)
    if cut is not None:
        return teacher.backbone.depth if cut[0] == "shared" else cut[1]
    model = make_model(student) if is_preset(student) else load_model(student)
    return int(model.backbone.depth)


def initialize_student(student: str, teacher: Model, reference: str, out: Path) -> tuple[str, str | None]:
    """Return the preset or folder that a student starts from and, for a preset, a folder with a tokenizer (or None).

    `student` is the value of --student, `reference` the path of the teacher, whose tokenizer a preset gets, and `out`
    the folder of the run. A student that is made from the teacher is saved in OUT/intermediate/start.
    """
    if is_preset(student):
        return student, str(find_folder(reference))
    cut = parse_student(student)
    if cut is None:
        return str(find_folder(student)), None
    method, count = cut
    model = convert_to_albert(teacher, count) if method == "shared" else keep_layers_of(teacher, count, method, student)
    folder, facts = intermediate_folder(out, "start"), {"teacher": reference, "student": student}
    start_run(folder, "distill", facts, resume=False)
    model.save(folder)
    finish_run(folder, facts)
    return str(folder), None


def keep_layers_of(teacher: Model, count: int, method: str, text: str) -> Model:
    """Return a copy of the teacher with `count` layers: the lowest ones if `method` is first, else evenly spaced.

    `text` is the option --student as the user wrote it, for error messages.
    """
    depth = teacher.backbone.depth
    if not 1 <= count < depth:
        raise PretuneError(f"--student {text}: the teacher has {depth} layers; choose a number from 1 to {depth - 1}")
    kept = list(range(count)) if method == "first" else [layer * depth // count for layer in range(count)]
    model = editable_copy(teacher)
    model.shape = prune_layers(model.backbone, model.shape, kept)
    update_config(model)
    return model
