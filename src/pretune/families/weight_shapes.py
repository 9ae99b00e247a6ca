"""Whether a checkpoint fits a model: what it lacks, what it has too many, and the heads of it that are left out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from torch import Tensor

from pretune.families.family import Family, Table

CONFIG = "config.json"


def find_misfits(
    family: Family,
    tensors: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    missing: Sequence[str],
    extra: Sequence[str],
    classes: int,
) -> dict[str, list[str]]:
    """Return what does not fit, by its kind and its published name; nothing where all does.

    `tensors` are the checkpoint's, as of `Table.today`, `wanted` the model's; `missing` and `extra` are what `Table.read` says of
    both. `classes` is how many config.json has.
    """
    table = family.table
    there = table.depths(tensors)
    needed = table.depths(part for name in wanted for part in table.theirs(name) or ())
    depths = {stack: (there.get(stack, 0), count) for stack, count in needed.items() if there.get(stack, 0) != count}

    def in_a_common_layer(name: str) -> bool:
        stack, number = table.layer_of(name) or ("", 0)
        return stack not in depths or number < min(depths[stack])

    backbone = [name for name in missing if name.startswith("backbone.")]
    misshapen = table.misfits(dict(tensors), {name: wanted[name] for name in backbone})
    lacking = [part for name in backbone for part in table.theirs(name) or (name,) if part not in tensors]
    unplaced = [name for name in extra if _of_backbone(table, name) and not wanted.keys() & set(table.places(name))]
    found = {
        "layers": [f"{has} in {stack}, but {count} by {CONFIG}" for stack, (has, count) in depths.items()],
        "outputs": _wrong_outputs(table, tensors, wanted, classes),
        "tensors of the wrong shape": [line for lines in misshapen.values() for line in lines],
        "tensors missing": list(filter(in_a_common_layer, lacking)),
        f"tensors that {CONFIG} has no place for": list(filter(in_a_common_layer, unplaced)),
        f"tensors that no {family.name} has": [name for name in extra if not table.knows(name)],
    }
    return {kind: names for kind, names in found.items() if names}


def heads_left_out(table: Table, extra: Sequence[str]) -> list[str]:
    """Return those of the tensors that were not read that are of heads.

    A pooler is what any head of sequences starts from, not a head.
    """
    places = {name: table.places(name) for name in extra if table.knows(name) and not _of_backbone(table, name)}
    return [name for name, ours in places.items() if not ours or not all(".pooler." in place for place in ours)]


def _of_backbone(table: Table, name: str) -> bool:
    return any(place.startswith("backbone.") for place in table.places(name))


def _wrong_outputs(
    table: Table, tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor], classes: int
) -> list[str]:
    """Return heads with an output for each class of config.json that have another number of outputs in the checkpoint."""
    outputs = {name: x for name, x in wanted.items() if re.fullmatch(r"heads\.\w+\.output\.weight", name)}
    of_classes = {name: x for name, x in outputs.items() if len(x) == classes and not name.startswith("heads.choose.")}
    wrong = table.misfits(dict(tensors), of_classes)
    return [f"{line} for the {classes} classes of {CONFIG}" for lines in wrong.values() for line in lines]
