"""Export of a model as a program of `torch.export` (.pt2), which torch runs without pretune, in Python or compiled ahead of time."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pretune.models.hf_config import CONFIG_FILE, DEFAULT_MAX_LENGTH
from pretune.models.model import Model
from pretune.models.padded_model import (
    PaddedModel,
    Scorer,
    check_exportable,
    check_outputs,
    choose_scorer,
    inputs_to_compare,
    output_names,
    synthetic_inputs,
)
from pretune.models.saving import describe_model
from pretune.objectives import Task
from pretune.runtime.atomic_io import write_bytes, write_json
from pretune.runtime.errors import PretuneError
from pretune.runtime.quiet_libraries import quiet_libraries

PROGRAM = "model.pt2"
ENGINE = "torch.export"  # in config.json: the weights are in a program, which pretune does not read


def export_program(model: Model, folder: Path, tasks: Sequence[Task] = ()) -> dict[str, Any]:
    """Write a folder with a program of `torch.export`, the tokenizer and the configuration; return what it contains.

    The program takes token ids, attention mask, segments and the mask of global attention, (b, L) each, for any number
    b of texts and any length L up to the model's maximum. It returns the hidden states and, if there is a head, its
    logits.
    """
    scorer = choose_scorer(model, tasks)
    stored = export_bytes(model, scorer)
    check_outputs(model, scorer, program_outputs(model, stored), "program")
    write_bytes(folder / PROGRAM, stored)
    config = describe_model(model)
    config["pretune"] |= {"engine": ENGINE}
    write_json(folder / CONFIG_FILE, config)
    if model.tokenizer is not None:
        model.tokenizer.save(folder, model.family.template, model.backbone.max_positions)
    facts: dict[str, Any] = {"folder": str(folder), "files": sorted(file.name for file in folder.iterdir())}
    return {**facts, "outputs": output_names(scorer)}


def export_bytes(model: Model, scorer: Scorer | None) -> bytes:
    """Return a model as the content of a .pt2 file; `scorer` is the task or head whose logits it outputs, if any."""
    check_exportable(model, "a program")
    sizes = model.config.vocab_size, model.backbone.max_positions or DEFAULT_MAX_LENGTH
    inputs = synthetic_inputs([5, 3], *sizes)
    shapes = [{0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}] * len(inputs)
    content = BytesIO()
    try:
        with torch.no_grad(), quiet_libraries():
            module = PaddedModel(model, scorer).cpu().eval()
            torch.export.save(torch.export.export(module, inputs, dynamic_shapes=shapes, strict=False), content)
    except Exception as error:  # torch.export has no common class for its errors
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise PretuneError(
            f"{model.family.name}: this model cannot be exported as a program of torch.export ({reason}); use --format onnx, or "
            "use the model with pretune"
        ) from error
    return content.getvalue()


@torch.no_grad()
def program_outputs(model: Model, stored: bytes) -> list[Tensor]:
    """Return the outputs of a stored program for the inputs of `inputs_to_compare`, in the order of `model_outputs`."""
    with quiet_libraries():
        program = torch.export.load(BytesIO(stored)).module()
    try:
        return [output for inputs in inputs_to_compare(model) for output in program(*inputs)]
    except Exception as error:  # the checks of a program raise errors of many classes
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise PretuneError(
            f"{model.family.name}: the exported program cannot run ({reason}); use --format onnx, or use the model with pretune"
        ) from error
