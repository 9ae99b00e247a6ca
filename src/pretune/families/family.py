"""What a family is: how a published model is wired, and how its checkpoint is laid out."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from pretune.backbones.states import Backbone
from pretune.text.sequences import Template

Tensors = dict[str, Tensor]
Row = tuple[str | Sequence[str], str]  # published name or names, our name
# Objectives that write with an encoder-decoder: their head is its way from states to the vocabulary.
WRITING = ("spans", "denoise", "mass", "shuffle", "translate", "lm")
# The heads that most layouts have for tags and answers. What a published name means is up to the class that was saved.
TOKEN_HEADS: tuple[Row, ...] = (
    ("classifier.{p}", "heads.tag.output.{p}"),
    ("qa_outputs.{p}", "heads.answer.output.{p}"),
)


def token_classes(name: str, answering: str = "QuestionAnswering") -> dict[frozenset[str], str]:
    """The classes of `transformers` for tags and answers, under the name of a family."""
    return {frozenset({"tag"}): f"{name}ForTokenClassification", frozenset({"answer"}): f"{name}For{answering}"}


@dataclass(frozen=True)
class Family:
    """A published model: configuration, wiring, template and two-way checkpoint table."""

    name: str  # `model_type` in config.json
    config: type[Any]  # a dataclass whose fields are keys of config.json
    build: Callable[[Any], Backbone]
    template: Template
    table: Table
    classes: Mapping[frozenset[str], str]  # heads present → the class that `transformers` loads them with
    # Values of `classifier_pooling` in config.json → ours. "" is a layout without that key; it pools by the start token
    # unless it says otherwise here.
    poolings: Mapping[str, str] = field(default_factory=dict)
    older: Mapping[str, str] = field(default_factory=dict)  # keys of older config.json files → the same key today
    companions: tuple[str, ...] = ()  # what heads export that is published in this layout too (ELECTRA: generator)
    elsewhere: bool = True  # whether `transformers` reads this layout

    def read_config(self, content: Mapping[str, Any]) -> Any:
        """The configuration in a config.json, keys we have no use for left out."""
        known = {field.name for field in fields(self.config)}
        renamed = {self.older[key]: value for key, value in content.items() if key in self.older}
        return self.config(**{key: value for key, value in {**renamed, **content}.items() if key in known})


class Table:
    """Names in the published layout and ours, read both ways.

        ("bert.encoder.layer.{i}.output.dense.{p}", "backbone.layers.{i}.feed_forward.part.output.{p}")

    {i} and {j} stand for numbers, {p} for a parameter's name. Several published names for one of ours are matrices that we keep
    stacked, one upon the other.
    """

    def __init__(
        self,
        *rows: Row,
        prefix: str = "",
        ignored: Sequence[str] = (),
        renamed: Mapping[str, str] | None = None,
        tied: Sequence[str] = (),
        transposed: Sequence[str] = (),
        folded: Mapping[str, str] | None = None,
        stacked: Mapping[str, int] | None = None,
    ) -> None:
        """`prefix` is what a bare backbone is saved without; `ignored` are names (patterns) that say nothing new;
        `renamed` are old spellings inside names; `tied` are names of one tensor, of which a checkpoint may have any;
        `transposed` are names (patterns) of matrices that lie the other way round, (inputs, outputs); `folded` are names
        of matrices whose columns are there by heads, (…, heads, width of a head), and of a tensor of (heads, width);
        `stacked` are names of so many matrices one upon the other, of which rows speak as NAME.0, NAME.1 …"""
        self.rows = [((theirs,) if isinstance(theirs, str) else tuple(theirs), ours) for theirs, ours in rows]
        self.prefix = prefix
        self.ignored = [_pattern(name) for name in ignored]
        self.renamed = dict(renamed or {})
        self.tied = tied
        self.transposed = [_pattern(name) for name in transposed]
        self.stacked = {_pattern(name): parts for name, parts in (stacked or {}).items()}
        self.folded = {_pattern(name): like for name, like in (folded or {}).items()}

    def theirs(self, name: str) -> tuple[str, ...] | None:
        """The published names of one of our parameters; None where the layout has no place for it."""
        for theirs, ours in self.rows:
            if match := _pattern(ours).fullmatch(name):
                return tuple(_fill(pattern, match.groupdict()) for pattern in theirs)
        return None

    def knows(self, name: str) -> bool:
        """Whether a published name has a place here."""
        return any(_pattern(part).fullmatch(name) for theirs, _ in self.rows for part in theirs)

    def today(self, tensors: Tensors) -> Tensors:
        """A published checkpoint by the names that the rows have, whatever its age and whichever of tied ones it has."""
        tensors = {self._modern(name): tensor for name, tensor in tensors.items()}
        if self.prefix and not any(name.startswith(self.prefix) for name in tensors):
            tensors = {self.prefix + name: tensor for name, tensor in tensors.items()}
        for name in list(tensors):
            if names := self._parts(name):
                tensors |= zip(names, tensors.pop(name).chunk(len(names)), strict=True)
        tensors = {name: tensor.flatten(1) if self._like(name) else tensor for name, tensor in tensors.items()}
        there = [name for name in self.tied if name in tensors]
        if there:
            tensors = dict.fromkeys(self.tied, tensors[there[0]]) | tensors
        return tensors

    def read(
        self, tensors: Tensors, ours: Mapping[str, Tensor], heads: Collection[str] = ()
    ) -> tuple[Tensors, list[str], list[str]]:
        """Our parameters from a published checkpoint, the names of ours it lacks, and the names it has too many.

        `ours` are the parameters that are wanted; those without a place in the layout, or of another shape in the
        checkpoint, count as lacking. So does the output of a head whose name another one has there, of `heads`, which are
        the checkpoint's.
        """
        tensors = self.today(tensors)
        wrong = {*self.misfits(tensors, ours), *self._foreign(ours, heads)}
        found: Tensors = {}
        missing: list[str] = []
        used: set[str] = set()
        for name in ours:
            theirs = self.theirs(name)
            if theirs is None or not all(part in tensors for part in theirs) or name in wrong:
                missing.append(name)
                continue
            parts = [self._turned(part, tensors[part]) for part in theirs]
            found[name] = parts[0] if len(parts) == 1 else torch.cat(parts)
            used.update(theirs)
        used.update(self.tied)
        extra = [n for n in tensors if n not in used and not any(p.fullmatch(n) for p in self.ignored)]
        return found, missing, extra

    def _foreign(self, ours: Mapping[str, Tensor], heads: Collection[str]) -> list[str]:
        """Those of our parameters that are of the output of a head, but belong to another one's in a checkpoint with `heads`."""
        taken = {part for theirs, own in self.rows if _head(own) in heads for part in theirs}
        strange = [(theirs, own) for theirs, own in self.rows if _head(own) not in heads and taken.intersection(theirs)]
        outputs = [_pattern(own) for _, own in strange if ".output." in own]
        return [name for name in ours if any(pattern.fullmatch(name) for pattern in outputs)]

    def misfits(self, tensors: Tensors, ours: Mapping[str, Tensor]) -> dict[str, list[str]]:
        """Our parameters that a checkpoint (as of `today`) has in another shape, and what is wrong with each part."""
        wrong: dict[str, list[str]] = {}
        for name, tensor in ours.items():
            theirs = self.theirs(name) or ()
            for part in theirs:
                shape = (*(rows // len(theirs) for rows in tensor.shape[:1]), *tensor.shape[1:])
                should = shape[::-1] if self._is_turned(part) else shape
                if part in tensors and (has := tuple(tensors[part].shape)) != should:
                    wrong.setdefault(name, []).append(f"{part} is {has}, not {should}")
        return wrong

    def write(self, ours: Mapping[str, Tensor], heads: Collection[str] = ()) -> tuple[Tensors, Tensors]:
        """A published checkpoint of our parameters, and those for which the layout has no place (left).

        Two heads may have one place, as mlm and classify in ModernBERT: it is that of `heads`, of the class that is saved.
        """
        published: Tensors = {}
        rest: Tensors = {}
        places = {name: self.theirs(name) for name in ours}
        owners: dict[str, str] = {}
        for name in sorted(ours, key=lambda name: _head(name) not in heads):
            owners.setdefault((places[name] or ("",))[0], name)
        for name, tensor in ours.items():
            theirs = places[name]
            if theirs is None or owners[theirs[0]] != name:
                rest[name] = tensor
            elif len(theirs) == 1:
                published[theirs[0]] = self._turned(theirs[0], tensor)
            else:
                for part, chunk in zip(theirs, tensor.chunk(len(theirs)), strict=True):
                    published[part] = self._turned(part, chunk.contiguous())
        for name in {name.rpartition(".")[0] for name in published}:
            if parts := self._parts(name):
                published[name] = torch.cat([published.pop(part) for part in parts])
        for name, tensor in published.items():
            if like := self._like(name):
                published[name] = tensor.reshape(len(tensor), *published[like].shape)
        return published, rest

    def _parts(self, name: str) -> list[str]:
        """The names of the matrices that a tensor holds one upon the other; none if it is but one."""
        parts = next((parts for pattern, parts in self.stacked.items() if pattern.fullmatch(name)), 0)
        return [f"{name}.{part}" for part in range(parts)]

    def _like(self, name: str) -> str | None:
        """The name of a tensor of (heads, width of a head), for a matrix whose columns are laid out by them."""
        for pattern, like in self.folded.items():
            if match := pattern.fullmatch(name):
                return _fill(like, match.groupdict())
        return None

    def _turned(self, name: str, tensor: Tensor) -> Tensor:
        """A tensor of a published name, from their way round to ours or back."""
        return tensor.t().contiguous() if self._is_turned(name) else tensor

    def _is_turned(self, name: str) -> bool:
        return any(p.fullmatch(name) for p in self.transposed)

    def _modern(self, name: str) -> str:
        for old, new in self.renamed.items():
            name = name.replace(old, new)
        return name


def _head(name: str) -> str | None:
    """The head that a parameter of ours is of."""
    return name.split(".")[1] if name.startswith("heads.") else None


def _pattern(name: str) -> re.Pattern[str]:
    escaped = re.escape(name)
    for key, stands_for in (("i", r"\d+"), ("j", r"\d+"), ("p", r"\w+")):
        escaped = escaped.replace(rf"\{{{key}\}}", f"(?P<{key}>{stands_for})")
    return re.compile(escaped)


def _fill(pattern: str, values: Mapping[str, str]) -> str:
    for key, value in values.items():
        pattern = pattern.replace(f"{{{key}}}", value)
    return pattern
