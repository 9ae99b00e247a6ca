"""What a student starts from: a model or preset of any family, or some of its teacher's own layers.

layers=6     every so many of the teacher's layers, its embeddings and its heads (Sanh et al., 2019)
first=6      its lower layers (Sun et al., 2019)
shared=128   all depths share one layer, the mean of the teacher's, on token vectors of this width (Lan et al., 2020)
NAME         a preset, with random weights and the teacher's tokenizer; a run or model folder, which has learned already
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pretune.backbones.pruned_shape import drop_all_but
from pretune.compression.parameter_sharing import shared_twin
from pretune.compression.pruning import copied, express
from pretune.models.create_model import make_model
from pretune.models.loading import load_model
from pretune.models.model import Model
from pretune.models.presets import is_preset
from pretune.models.references import find_folder
from pretune.runtime.errors import PretuneError
from pretune.runtime.output_paths import intermediate
from pretune.training.run_folder import finish_run, start_run

_CUT = re.compile(r"(layers|first|shared)=(\d+)")


@dataclass(frozen=True)
class Start:
    """A model reference, and the folder of a tokenizer where that has none."""

    model: str
    tokenizer: str | None = None


def cut_of(student: str) -> tuple[str, int] | None:
    """A way to make a student of its teacher, and a number; None for one that has a name."""
    cut = _CUT.fullmatch(student.replace(" ", ""))
    if cut is None and "=" in student and not Path(student).exists():
        raise PretuneError(f"--student {student}: there are layers=6, first=6, shared=128, presets and folders")
    return (cut[1], int(cut[2])) if cut else None


def depth_of(student: str, teacher: Model) -> int:
    """How many layers a student of this name will have."""
    cut = cut_of(student)
    if cut is not None:
        return teacher.backbone.depth if cut[0] == "shared" else cut[1]
    found = make_model(student) if is_preset(student) else load_model(student)
    return int(found.backbone.depth)


def make_start(student: str, teacher: Model, reference: str, out: Path) -> Start:
    """Return the model that a student starts from; where it has to be made, it is kept in OUT/intermediate/start."""
    if is_preset(student):
        return Start(student, str(find_folder(reference)))
    cut = cut_of(student)
    if cut is None:
        return Start(str(find_folder(student)))
    way, number = cut
    made = shared_twin(teacher, number) if way == "shared" else with_layers(teacher, number, way, student)
    folder = intermediate(out, "start")
    start_run(folder, "distill", {"teacher": reference, "student": student}, resume=False)
    made.save(folder)
    finish_run(folder, {"teacher": reference, "student": student})
    return Start(str(folder))


def with_layers(teacher: Model, count: int, way: str, text: str) -> Model:
    """A teacher with so many of its layers."""
    depth = teacher.backbone.depth
    if not 1 <= count < depth:
        raise PretuneError(f"--student {text}: the teacher has {depth} layers; a student has 1 to {depth - 1} of them")
    kept = list(range(count)) if way == "first" else [layer * depth // count for layer in range(count)]
    made = copied(teacher)
    made.shape = drop_all_but(made.backbone, made.shape, kept)
    express(made)
    return made
