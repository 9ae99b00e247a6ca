"""Compare a checkpoint with a model: find missing and unexpected tensors, wrong shapes, and skipped heads."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from torch import Tensor

from pretune.families.family import Family
from pretune.families.parameter_names import NameTable

CONFIG = "config.json"


def find_mismatches(
    family: Family,
    tensors: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    missing: Sequence[str],
    extra: Sequence[str],
    classes: int,
) -> dict[str, list[str]]:
    """Return the differences between a checkpoint and a model: lists of messages by kind, empty if the checkpoint fits.

    `tensors` is a normalized checkpoint (see `NameTable.normalize`) and `wanted` has the model's parameters; `missing`
    and `extra` are the names of missing parameters and of unused tensors, as `NameTable.read` returns them; `classes`
    is the number of classes in config.json.
    """
    table = family.table
    there = table.depths(tensors)
    needed = table.depths(part for name in wanted for part in table.published_names(name) or ())
    depths = {stack: (there.get(stack, 0), count) for stack, count in needed.items() if there.get(stack, 0) != count}

    def in_common_layer(name: str) -> bool:
        stack, number = table.layer_of(name) or ("", 0)
        return stack not in depths or number < min(depths[stack])

    backbone = [name for name in missing if name.startswith("backbone.")]
    misshapen = table.shape_mismatches(dict(tensors), {name: wanted[name] for name in backbone})
    lacking = [part for name in backbone for part in table.published_names(name) or (name,) if part not in tensors]
    unplaced = [name for name in extra if _in_backbone(table, name) and not wanted.keys() & set(table.our_names(name))]
    found = {
        "layers": [f"{has} in {stack}, but {count} in {CONFIG}" for stack, (has, count) in depths.items()],
        "outputs": _wrong_outputs(table, tensors, wanted, classes),
        "tensors of the wrong shape": [line for lines in misshapen.values() for line in lines],
        "tensors missing": list(filter(in_common_layer, lacking)),
        f"tensors that {CONFIG} does not describe": list(filter(in_common_layer, unplaced)),
        f"unknown tensors for {family.name}": [n for n in extra if not table.recognizes(n)],
    }
    return {kind: names for kind, names in found.items() if names}


def skipped_heads(table: NameTable, extra: Sequence[str]) -> list[str]:
    """Return the names in `extra`, of unused tensors, that belong to task heads, except those of poolers."""
    names = {name: table.our_names(name) for name in extra if table.recognizes(name) and not _in_backbone(table, name)}
    return [name for name, ours in names.items() if not ours or not all(".pooler." in own for own in ours)]


def _in_backbone(table: NameTable, name: str) -> bool:
    return any(own.startswith("backbone.") for own in table.our_names(name))


def _wrong_outputs(
    table: NameTable, tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor], classes: int
) -> list[str]:
    """Return a message for each classifier in the checkpoint whose number of outputs is not `classes`.

    `tensors` is the checkpoint, `wanted` has the model's parameters, and `classes` is the number in config.json.
    """
    outputs = {name: x for name, x in wanted.items() if re.fullmatch(r"heads\.\w+\.output\.weight", name)}
    of_classes = {name: x for name, x in outputs.items() if len(x) == classes and not name.startswith("heads.choose.")}
    wrong = table.shape_mismatches(dict(tensors), of_classes)
    return [f"{line} for the {classes} classes of {CONFIG}" for lines in wrong.values() for line in lines]
