"""A two-way table of published parameter names and pretune's own, to read and write checkpoints of other libraries."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from pretune.runtime.errors import PretuneError

Tensors = dict[str, Tensor]
Row = tuple[str | Sequence[str], str]  # the published name or names, and pretune's own
# Sequence-to-sequence objectives: their head is the decoder's projection onto the vocabulary.
SEQ2SEQ_OBJECTIVES = ("spans", "denoise", "mass", "shuffle", "translate", "lm")
# The heads of most layouts for tagging and question answering. The saved class says which head a published name is of.
TOKEN_HEADS: tuple[Row, ...] = (
    ("classifier.{p}", "heads.tag.output.{p}"),
    ("qa_outputs.{p}", "heads.answer.output.{p}"),
)


def output_rows(head: str, weight: str, bias: str = "", own_bias: str = "") -> list[Row]:
    """Return pairs of published and pretune parameter names for the language-model head called `head`.

    `weight` and `bias` are the published names of its output matrix and bias; `own_bias` is the published name of the
    bias of an untied output matrix, if that differs.
    """
    rows: list[Row] = [(weight, f"heads.{head}.output.weight")]
    if bias:
        rows += [(bias, f"heads.{head}.bias"), (own_bias or bias, f"heads.{head}.output.bias")]
    return rows


def own_rows(*names: str) -> list[Row]:
    """Return (published name, pretune name) pairs for parameters whose pretune names only add "backbone." in front."""
    return [(name, f"backbone.{name}") for name in names]


def pooled_heads(pooler: str, output: str) -> list[Row]:
    """Return pairs of published and pretune parameter names for the heads classify and choose.

    `pooler` and `output` are the published names of the pooler and of the output layer, which both heads share.
    """
    return [
        (published, f"heads.{head}.{part}.{{p}}")
        for head in ("classify", "choose")
        for published, part in ((pooler, "pooler.dense"), (output, "output"))
    ]


class NameTable:
    """A two-way table of parameter names in published checkpoints and in pretune, with rows such as:

        ("bert.encoder.layer.{i}.output.dense.{p}", "backbone.layers.{i}.feed_forward.part.output.{p}")

    {i} and {j} stand for numbers, {p} for the last part of a name, such as weight or bias. If one row has several
    published names, pretune stores their matrices as one, concatenated along the first dimension.
    """

    def __init__(
        self,
        *rows: Row,
        prefix: str = "",
        embedding: Sequence[str] = (),
        output: str = "",
        copied: Mapping[str, str] | None = None,
        equal: Mapping[str, str] | None = None,
        unused: Mapping[str, str] | None = None,
        unsupported: Mapping[str, str] | None = None,
        renamed: Mapping[str, str] | None = None,
        transposed: Sequence[str] = (),
        folded: Mapping[str, str] | None = None,
        stacked: Mapping[str, int] | None = None,
    ) -> None:
        """Build the table from pairs of published and pretune names; the arguments below contain published names.

        - prefix: how the names of backbone parameters begin, except in checkpoints of a backbone without heads
        - embedding: the names of the token embedding; the first one is written, or all of them if it is untied
        - output: the language model's output matrix, which is the token embedding if `tie_word_embeddings`
        - copied: maps a name to a second name of the same tensor, such as an output bias; the second takes precedence
        - equal: maps patterns of further tied tensors to the tensor that they must equal
        - unused: maps patterns of tensors that do not affect the output to the reason
        - unsupported: maps patterns of heads that pretune does not have, and skips, to a description
        - renamed: maps outdated parts of names to the current ones
        - transposed: patterns of matrices that are stored as (inputs, outputs)
        - folded: maps patterns of matrices whose columns are stored as (heads, head width) to the name of a tensor with
          the shape (heads, head width)
        - stacked: maps patterns of tensors that hold several matrices, named NAME.0, NAME.1, …, to their number
        """
        self.rows = [
            ((published,) if isinstance(published, str) else tuple(published), ours) for published, ours in rows
        ]
        self.prefix, self.embedding, self.output = prefix, tuple(embedding), output
        self.copied = dict(copied or {})
        self.equal = {_pattern(name): other for name, other in (equal or {}).items()}
        self.unused = {_pattern(name): reason for name, reason in (unused or {}).items()}
        self.unsupported = {_pattern(name): what for name, what in (unsupported or {}).items()}
        self.renamed = dict(renamed or {})
        self.transposed = [_pattern(name) for name in transposed]
        self.stacked = {_pattern(name): parts for name, parts in (stacked or {}).items()}
        self.folded = {_pattern(name): like for name, like in (folded or {}).items()}

    @cached_property  # compiled at the first use: a process reads the tables of few families
    def _from_ours(self) -> list[tuple[re.Pattern[str], tuple[str, ...]]]:
        return [(_pattern(ours), published) for published, ours in self.rows]

    @cached_property
    def _from_published(self) -> list[tuple[re.Pattern[str], str]]:
        return [(_pattern(part), ours) for published, ours in self.rows for part in published]

    def published_names(self, name: str) -> tuple[str, ...] | None:
        """Return the published names of a pretune parameter, or None if published checkpoints do not have it.

        >>> NameTable(("h.{i}.bias", "backbone.layers.{i}.bias")).published_names("backbone.layers.2.bias")
        ('h.2.bias',)
        """
        for pattern, published in self._from_ours:
            if match := pattern.fullmatch(name):
                return tuple(_fill(part, match.groupdict()) for part in published)
        return None

    def our_names(self, name: str) -> list[str]:
        """Return the pretune names of a published parameter: one in the backbone, or one per head that may use it."""
        found = ((pattern.fullmatch(name), ours) for pattern, ours in self._from_published)
        return [_fill(ours, match.groupdict()) for match, ours in found if match]

    def recognizes(self, name: str) -> bool:
        """Return whether published checkpoints of a model family may have a tensor called `name`, used or not."""
        others = (*self.equal, *self.unused, *self.unsupported, *self.stacked)
        own = {*self.embedding, self.output, *self.copied}
        return name in own or bool(self.our_names(name)) or any(pattern.fullmatch(name) for pattern in others)

    def normalize(self, tensors: Tensors) -> Tensors:
        """Return a published checkpoint in normalized form, as other methods need it.

        Tensors have their current names, and matrices that are stacked in one tensor are separate tensors.
        """
        current = self.current_names(tensors)
        found: Tensors = {}
        for name, tensor in tensors.items():
            if current[name] in found and not _same(found[current[name]], tensor):
                raise PretuneError(
                    f"the tensors {name} and {current[name]} are two names of one parameter, but their values differ; "
                    "remove one of the two tensors from the checkpoint"
                )
            found[current[name]] = tensor
        for name in list(found):
            if names := self._parts(name):
                found |= zip(names, found.pop(name).chunk(len(names)), strict=True)
        return {name: tensor.flatten(1) if self._like(name) else tensor for name, tensor in found.items()}

    def current_names(self, published: Iterable[str]) -> dict[str, str]:
        """Map a checkpoint's tensor names, which may be outdated or lack the prefix, to the current published names."""
        current = {name: name for name in published}
        for old, new in self.renamed.items():
            current = {name: now.replace(old, new) for name, now in current.items()}
        if self.prefix and not any(name.startswith(self.prefix) for name in current.values()):
            # A head that is saved beside a bare backbone has no prefix.
            known = self.recognizes
            current = {old: name if known(name) else self.prefix + name for old, name in current.items()}
            current = {old: name if known(name) else name.removeprefix(self.prefix) for old, name in current.items()}
        return current

    def has_own_output(self, tensors: Tensors) -> bool:
        """Return whether a normalized checkpoint (see `normalize`) has an output matrix other than its token embedding."""
        embedding = next((tensors[name] for name in self.embedding if name in tensors), None)
        return embedding is not None and self.output in tensors and not _same(tensors[self.output], embedding)

    def with_shared_names(self, tensors: Tensors, tied: bool) -> Tensors:
        """Return a checkpoint in which every tensor with several names appears under all of them.

        If the output matrix is `tied` to the token embedding, it gets the name of the output matrix as well.
        """
        names = (*self.embedding, self.output) if tied and self.output else self.embedding
        there = [name for name in names if name in tensors]
        pairs = dict.fromkeys(there[1:], *there[:1])
        matches = ((pattern.fullmatch(name), name, other) for name in tensors for pattern, other in self.equal.items())
        pairs |= {name: _fill(other, match.groupdict()) for match, name, other in matches if match}
        for name, other in pairs.items():
            if other in tensors and not _same(tensors[name], tensors[other]):
                raise PretuneError(
                    f"the tensors {other} and {name} differ, but this architecture has one parameter "
                    "for both; use a checkpoint in which the two tensors are equal"
                )
        filled = dict.fromkeys(names, tensors[there[0]]) if there else {}
        for copy, source in self.copied.items():
            if (tensor := tensors.get(source, tensors.get(copy))) is not None:
                filled |= {copy: tensor, source: tensor}
        return tensors | filled

    def read(
        self, tensors: Tensors, ours: Mapping[str, Tensor], heads: Collection[str] = (), tied: bool = True
    ) -> tuple[Tensors, list[str], list[str]]:
        """Read a model's parameters from a published checkpoint.

        Return the parameters that were found, the names of those that are missing, and the names of unused tensors.

        - ours: the model's parameters; a parameter whose shape differs in the checkpoint counts as missing
        - heads: the heads that the checkpoint has; if the output layer of another head has the same published name as
          the output layer of one of `heads`, it counts as missing
        - tied: whether the checkpoint's output matrix is its token embedding
        """
        tensors = self.normalize(tensors)
        published_before = list(tensors)
        tensors = self.with_shared_names(tensors, tied)
        wrong = {*self.shape_mismatches(tensors, ours), *self._outputs_of_other_heads(ours, heads)}
        found: Tensors = {}
        missing: list[str] = []
        used: set[str] = set()
        for name in ours:
            published = self.published_names(name)
            if published is None or not all(part in tensors for part in published) or name in wrong:
                missing.append(name)
                continue
            parts = [self._transpose(part, tensors[part]) for part in published]
            found[name] = parts[0] if len(parts) == 1 else torch.cat(parts)
            used.update(published)
        used.update(self.embedding, [self.output] if tied else [])
        used.update(name for pair in self.copied.items() if used.intersection(pair) for name in pair)
        ignored = (*self.equal, *self.unused)
        extra = [n for n in published_before if n not in used and not any(pattern.fullmatch(n) for pattern in ignored)]
        return found, missing, extra

    def layer_of(self, name: str) -> tuple[str, int] | None:
        """Return the layer stack and number in a published parameter name, or None if it is not in a layer.

        >>> NameTable(("h.{i}.bias", "backbone.layers.{i}.bias")).layer_of("h.1.bias")
        ('h', 1)
        """
        for pattern, ours in self._from_published:
            stack = ours.partition("layers.{i}")[0]
            if stack != ours and stack.startswith("backbone.") and (match := pattern.fullmatch(name)):
                first = next(published[0] for published, own in self.rows if own.startswith(f"{stack}layers.{{i}}"))
                return first.partition(".{i}")[0], int(match["i"])
        return None

    def depths(self, published: Iterable[str]) -> dict[str, int]:
        """Return the number of layers of each layer stack, given the tensor names of a checkpoint."""
        found: dict[str, int] = {}
        for name in published:
            if layer := self.layer_of(name):
                stack, number = layer
                found[stack] = max(found.get(stack, 0), number + 1)
        return found

    def _outputs_of_other_heads(self, ours: Mapping[str, Tensor], heads: Collection[str]) -> list[str]:
        """Return the names in `ours` of output layers whose published names belong to one of `heads` instead.

        These output layers must not be read from a checkpoint with these `heads`.
        """
        taken = {part for published, own in self.rows if _head(own) in heads for part in published}
        others = [own for published, own in self.rows if _head(own) not in heads and taken.intersection(published)]
        outputs = [_pattern(own) for own in others if ".output." in own]
        return [name for name in ours if any(pattern.fullmatch(name) for pattern in outputs)]

    def shape_mismatches(self, tensors: Tensors, ours: Mapping[str, Tensor]) -> dict[str, list[str]]:
        """Return a mapping from parameters of `ours` whose shapes differ in a normalized checkpoint to messages."""
        wrong: dict[str, list[str]] = {}
        for name, tensor in ours.items():
            published = self.published_names(name) or ()
            for part in published:
                shape = (*(rows // len(published) for rows in tensor.shape[:1]), *tensor.shape[1:])
                should = shape[::-1] if self._is_transposed(part) else shape
                if part in tensors and (has := tuple(tensors[part].shape)) != should:
                    wrong.setdefault(name, []).append(f"{part} is {has}, not {should}")
        return wrong

    def write(
        self, ours: Mapping[str, Tensor], heads: Collection[str] = (), tied: bool = True
    ) -> tuple[Tensors, Tensors]:
        """Convert pretune's parameters `ours` to a published checkpoint; also return those that it cannot hold.

        If two heads share a published name (mlm and classify in ModernBERT), the head that is in `heads` gets it.
        `tied` says whether the output matrix is the token embedding.
        """
        checkpoint: Tensors = {}
        rest: Tensors = {}
        names = {name: self.published_names(name) for name in ours}
        owners: dict[str, str] = {}
        for name in sorted(ours, key=lambda name: _head(name) not in heads):
            owners.setdefault((names[name] or ("",))[0], name)
        for name, tensor in ours.items():
            published = names[name]
            if published is None or owners[published[0]] != name:
                rest[name] = tensor
            elif len(published) == 1:
                checkpoint[published[0]] = self._transpose(published[0], tensor)
            else:
                for part, chunk in zip(published, tensor.chunk(len(published)), strict=True):
                    checkpoint[part] = self._transpose(part, chunk.contiguous())
        for name in {name.rpartition(".")[0] for name in checkpoint}:
            if parts := self._parts(name):
                checkpoint[name] = torch.cat([checkpoint.pop(part) for part in parts])
        for name, tensor in checkpoint.items():
            if like := self._like(name):
                checkpoint[name] = tensor.reshape(len(tensor), *checkpoint[like].shape)
        copies = {copy: source for copy, source in self.copied.items() if source in checkpoint}
        if not tied:
            copies |= {name: self.embedding[0] for name in self.embedding[1:] if self.embedding[0] in checkpoint}
        return checkpoint | {copy: checkpoint[source].clone() for copy, source in copies.items()}, rest

    def _parts(self, name: str) -> list[str]:
        """Return the names of the matrices that a published tensor stacks; an empty list if it is a single matrix."""
        parts = next((parts for pattern, parts in self.stacked.items() if pattern.fullmatch(name)), 0)
        return [f"{name}.{part}" for part in range(parts)]

    def _like(self, name: str) -> str | None:
        """Return the name of a tensor whose shape, (heads, head width), tells how the columns of a matrix are stored.

        Return None for a matrix whose columns are stored flat.
        """
        for pattern, like in self.folded.items():
            if match := pattern.fullmatch(name):
                return _fill(like, match.groupdict())
        return None

    def _transpose(self, name: str, tensor: Tensor) -> Tensor:
        """Transpose a tensor if published checkpoints store the matrix `name` as (inputs, outputs)."""
        return tensor.t().contiguous() if self._is_transposed(name) else tensor

    def _is_transposed(self, name: str) -> bool:
        """Return whether published checkpoints store the matrix `name` as (inputs, outputs)."""
        return any(pattern.fullmatch(name) for pattern in self.transposed)


def _same(first: Tensor, second: Tensor) -> bool:
    return first is second or (first.shape == second.shape and bool((first == second).all()))


def _head(name: str) -> str | None:
    """Return the head that a pretune parameter name such as heads.mlm.bias belongs to; None for the backbone."""
    return name.split(".")[1] if name.startswith("heads.") else None


def _pattern(name: str) -> re.Pattern[str]:
    """Convert a parameter-name pattern with the placeholders {i}, {j} and {p} to a regular expression."""
    escaped = re.escape(name)
    for key, stands_for in (("i", r"\d+"), ("j", r"\d+"), ("p", r"\w+")):
        escaped = escaped.replace(rf"\{{{key}\}}", f"(?P<{key}>{stands_for})")
    return re.compile(escaped)


def _fill(pattern: str, values: Mapping[str, str]) -> str:
    """Replace the placeholders {i}, {j} and {p} of a parameter-name pattern with values."""
    for key, value in values.items():
        pattern = pattern.replace(f"{{{key}}}", value)
    return pattern
