"""What a family is: how a published model is wired, and how its checkpoint is laid out."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, get_origin, get_type_hints

import torch
from torch import Tensor

from pretune.backbones.backbone import Backbone
from pretune.families.config_bounds import check_bounds
from pretune.families.config_keys import DESCRIPTION, HARMLESS, REFUSED
from pretune.runtime.errors import LONGEST_QUOTE, PretuneError, shorten
from pretune.runtime.parsing import as_tuples, conform
from pretune.text.tokenizers.template import Template

Tensors = dict[str, Tensor]
Row = tuple[str | Sequence[str], str]  # published name or names, our name
# Objectives that write with an encoder-decoder: their head is its way from states to the vocabulary.
WRITING = ("spans", "denoise", "mass", "shuffle", "translate", "lm")
# The heads that most layouts have for tags and answers. What a published name means is up to the class that was saved.
TOKEN_HEADS: tuple[Row, ...] = (
    ("classifier.{p}", "heads.tag.output.{p}"),
    ("qa_outputs.{p}", "heads.answer.output.{p}"),
)


def output_rows(head: str, weight: str, bias: str = "", own_bias: str = "") -> list[Row]:
    """Return the rows of a language model's output, whether its matrix is the token embedding or its own.

    `own_bias` is the name of the bias beside an own matrix, where it is another one.
    """
    rows: list[Row] = [(weight, f"heads.{head}.output.weight")]
    if bias:
        rows += [(bias, f"heads.{head}.bias"), (own_bias or bias, f"heads.{head}.output.bias")]
    return rows


def token_classes(name: str, answering: str = "QuestionAnswering") -> dict[frozenset[str], str]:
    """The classes of `transformers` for tags and answers, under the name of a family."""
    return {frozenset({"tag"}): f"{name}ForTokenClassification", frozenset({"answer"}): f"{name}For{answering}"}


# The values of a key of config.json that a family supports: some, or what a configuration makes of it.
Only = Sequence[Any] | Callable[[Any], Sequence[Any]]


@dataclass(frozen=True)
class Family:
    """A published model: configuration, wiring, template and two-way checkpoint table.

    Every key of a config.json is accounted for: it is a field of `config`, one of `aliases`, has a value that `only` lists, or
    is `harmless`. So is every tensor, by the `table`.
    """

    name: str  # `model_type` in config.json
    config: type[Any]  # a dataclass whose fields are keys of config.json
    build: Callable[[Any], Backbone]
    template: Template
    table: Table
    classes: Mapping[frozenset[str], str]  # heads present → the class that `transformers` loads them with
    # Further classes of `transformers` → those of their heads that pretune has; what else they have is left out.
    other_classes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    # Classes of `transformers` whose heads pretune does not have → what these are. They are loaded without, and never answer.
    closed_classes: Mapping[str, str] = field(default_factory=dict)
    # Values of `classifier_pooling` in config.json → ours. "" is a layout without that key; it pools by the start token
    # unless it says otherwise here.
    poolings: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)  # other names of keys → the key
    only: Mapping[str, Only] = field(default_factory=dict)  # keys that change the output → the supported values
    harmless: Mapping[str, str] = field(default_factory=dict)  # keys that change no output → why they do not
    companions: tuple[str, ...] = ()  # what heads export that is published in this layout too (ELECTRA: generator)
    elsewhere: bool = True  # whether `transformers` reads this layout
    # Networks with the same `model_type` but another wiring, told apart by their class (T5EncoderModel).
    variants: tuple[Family, ...] = ()

    def variant(self, kind: str) -> Family:
        """Return the family of a class of `transformers`: one of the variants, or this one."""
        return next((family for family in self.variants if family.has_class(kind)), self)

    def has_class(self, kind: str) -> bool:
        """Return whether a class of `transformers` is this family's own."""
        return kind in {*self.classes.values(), *self.other_classes}

    def read_config(self, content: Mapping[str, Any], where: str = "") -> Any:
        """Return the configuration in a config.json; values that pretune does not support are refused by name.

        `where` is the file, for messages.
        """
        where = where or self.name
        given = {key: value for key, value in content.items() if key not in self.aliases}
        for alias, key in self.aliases.items():
            value = content.get(alias)
            if value is not None and given.setdefault(key, value) != value:
                raise PretuneError(
                    f"{where}: {alias} is {_json(value)}, but {key}, which means the same, is {_json(given[key])}; "
                    "correct one of them"
                )
        for key, meaning in REFUSED.items():
            if content.get(key):
                raise PretuneError(f"{where}: {key}: {meaning}")
        known = get_type_hints(self.config)
        # The tokenizer knows ids that a file leaves open.
        told = {key: value for key, value in given.items() if value is not None or not key.endswith("_token_id")}
        own = {key: _typed(value, known[key], f"{where}: {key}") for key, value in told.items() if key in known}
        for key, value in own.items():
            check_bounds(key, value, where)
        config = self.config(**own)
        for key, only in self.only.items():
            value = getattr(config, key) if key in known else content.get(key)
            values = only(config) if callable(only) else only
            if value not in values and not (value is None and key not in known):
                supported = " or ".join(map(_json, values))
                raise PretuneError(f"{where}: {key} {_json(value)} is not supported for {self.name}; only {supported}")
        return config

    def unknown_keys(self, content: Mapping[str, Any]) -> list[str]:
        """Return the keys of a config.json that nobody has classified: they may change the output."""
        known = {field.name for field in fields(self.config)}
        known |= {*DESCRIPTION, *HARMLESS, *REFUSED, *self.aliases, *self.only, *self.harmless}
        return sorted(key for key, value in content.items() if key not in known and value is not None)

    def heads_of(self, name: str) -> frozenset[str]:
        """Return the heads of a class of `transformers`, the first where several objectives have that class."""
        published = (heads for heads, kind in self.classes.items() if kind == name)
        return next(published, self.other_classes.get(name, frozenset()))

    def is_tied(self, config: Any) -> bool:
        """Return whether logits over the vocabulary come from the token embedding itself."""
        return not self.table.output or bool(config.tie_word_embeddings)


def _json(value: Any) -> str:
    return shorten(json.dumps(value, default=str), LONGEST_QUOTE)


def _typed(value: Any, kind: Any, where: str) -> Any:
    """Return a value of config.json if it is of the type of its key."""
    if kind is bool and value in (0, 1):  # as some files have it
        return bool(value)
    return conform(as_tuples(value) if get_origin(kind) is tuple else value, kind, where)


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
        """Lay out a family's tensors.

        Parameters
        ----------
        prefix
            What a bare backbone is saved without.
        embedding
            Names of the token embedding: one tensor, of which a checkpoint may have any. The first is written; without tied
            embeddings all are, since `transformers` then reads each.
        output
            The name of the output matrix of language models: the token embedding, where `tie_word_embeddings` is true.
        copied
            Names of tensors that repeat another (an output bias with two names) → that other, which counts where both are
            there.
        equal
            Names (patterns) of further tensors that are tied to another → that other, which they must equal.
        unused
            Names (patterns) of tensors that change nothing → why.
        unsupported
            Names (patterns) of heads in `transformers` that pretune does not have → what they are. They are left out and
            listed.
        renamed
            Old spellings inside names → the present ones.
        transposed
            Names (patterns) of matrices that lie the other way round, (inputs, outputs).
        folded
            Names of matrices whose columns are there by heads, (…, heads, width of a head) → a tensor of (heads, width).
        stacked
            Names of tensors that hold several matrices one upon the other → how many; rows call them NAME.0, NAME.1 …
        """
        self.rows = [((theirs,) if isinstance(theirs, str) else tuple(theirs), ours) for theirs, ours in rows]
        self.prefix, self.embedding, self.output = prefix, tuple(embedding), output
        self.copied = dict(copied or {})
        self.equal = {_pattern(name): other for name, other in (equal or {}).items()}
        self.unused = {_pattern(name): reason for name, reason in (unused or {}).items()}
        self.unsupported = {_pattern(name): what for name, what in (unsupported or {}).items()}
        self.renamed = dict(renamed or {})
        self.transposed = [_pattern(name) for name in transposed]
        self.stacked = {_pattern(name): parts for name, parts in (stacked or {}).items()}
        self.folded = {_pattern(name): like for name, like in (folded or {}).items()}
        self._ours = [(_pattern(ours), theirs) for theirs, ours in self.rows]
        self._theirs = [(_pattern(part), ours) for theirs, ours in self.rows for part in theirs]

    def theirs(self, name: str) -> tuple[str, ...] | None:
        """Return the published names of one of our parameters; None where the layout has no place for it."""
        for pattern, theirs in self._ours:
            if match := pattern.fullmatch(name):
                return tuple(_fill(part, match.groupdict()) for part in theirs)
        return None

    def places(self, name: str) -> list[str]:
        """Return our names for a published one: of the backbone, or of each head that has it; none where it has no place."""
        found = ((pattern.fullmatch(name), ours) for pattern, ours in self._theirs)
        return [_fill(ours, match.groupdict()) for match, ours in found if match]

    def knows(self, name: str) -> bool:
        """Return whether a published name has a place here, is unused, or of a head that pretune does not have."""
        others = (*self.equal, *self.unused, *self.unsupported, *self.stacked)
        own = {*self.embedding, self.output, *self.copied}
        return name in own or bool(self.places(name)) or any(pattern.fullmatch(name) for pattern in others)

    def today(self, tensors: Tensors) -> Tensors:
        """Return a published checkpoint by the names that the rows have, whatever its age."""
        modern = self.names(tensors)
        found: Tensors = {}
        for name, tensor in tensors.items():
            if modern[name] in found and not _same(found[modern[name]], tensor):
                raise PretuneError(f"tensors {name} and {modern[name]} are one and the same in this layout, but differ")
            found[modern[name]] = tensor
        for name in list(found):
            if names := self._parts(name):
                found |= zip(names, found.pop(name).chunk(len(names)), strict=True)
        return {name: tensor.flatten(1) if self._like(name) else tensor for name, tensor in found.items()}

    def names(self, published: Iterable[str]) -> dict[str, str]:
        """Return the names of a checkpoint, of any age, with or without prefix → those that the rows have."""
        modern = {name: self._modern(name) for name in published}
        if self.prefix and not any(name.startswith(self.prefix) for name in modern.values()):
            # A head beside a bare backbone has no prefix.
            modern = {old: name if self.knows(name) else self.prefix + name for old, name in modern.items()}
            modern = {old: name if self.knows(name) else name.removeprefix(self.prefix) for old, name in modern.items()}
        return modern

    def has_own_output(self, tensors: Tensors) -> bool:
        """Return whether a checkpoint (as of `today`) has an output matrix that is not its token embedding."""
        embedding = next((tensors[name] for name in self.embedding if name in tensors), None)
        return embedding is not None and self.output in tensors and not _same(tensors[self.output], embedding)

    def shared(self, tensors: Tensors, tied: bool) -> Tensors:
        """Return a checkpoint (as of `today`) with all names of tensors that have several, whichever it has.

        `tied`: the output matrix is the token embedding. Names of one tensor that differ are refused.
        """
        names = (*self.embedding, self.output) if tied and self.output else self.embedding
        there = [name for name in names if name in tensors]
        pairs = dict.fromkeys(there[1:], *there[:1])
        matches = ((pattern.fullmatch(name), name, other) for name in tensors for pattern, other in self.equal.items())
        pairs |= {name: _fill(other, match.groupdict()) for match, name, other in matches if match}
        for name, other in pairs.items():
            if other in tensors and not _same(tensors[name], tensors[other]):
                raise PretuneError(
                    f"tensors {other} and {name} differ; only models where they are one are supported (tie_word_embeddings)"
                )
        filled = dict.fromkeys(names, tensors[there[0]]) if there else {}
        for copy, source in self.copied.items():
            if (tensor := tensors.get(source, tensors.get(copy))) is not None:
                filled |= {copy: tensor, source: tensor}
        return tensors | filled

    def read(
        self, tensors: Tensors, ours: Mapping[str, Tensor], heads: Collection[str] = (), tied: bool = True
    ) -> tuple[Tensors, list[str], list[str]]:
        """Return our parameters from a published checkpoint, the names of ours it lacks, and the names it has too many.

        `ours` are the parameters that are wanted; those without a place in the layout, or of another shape in the
        checkpoint, count as lacking. So does the output of a head whose name another one has there, of `heads`, which are
        the checkpoint's. `tied` says whether its output matrix is its token embedding.
        """
        tensors = self.today(tensors)
        given = list(tensors)
        tensors = self.shared(tensors, tied)
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
        used.update(self.embedding, [self.output] if tied else [])
        used.update(name for pair in self.copied.items() if used.intersection(pair) for name in pair)
        quiet = (*self.equal, *self.unused)
        extra = [n for n in given if n not in used and not any(pattern.fullmatch(n) for pattern in quiet)]
        return found, missing, extra

    def layer_of(self, name: str) -> tuple[str, int] | None:
        """Return the stack of layers that a published name is of, and the number of its layer.

        A stack is called by what comes before the numbers of its layers.

        >>> Table(("h.{i}.bias", "backbone.layers.{i}.bias")).layer_of("h.1.bias")
        ('h', 1)
        """
        for pattern, ours in self._theirs:
            stack = ours.partition("layers.{i}")[0]
            if stack != ours and stack.startswith("backbone.") and (match := pattern.fullmatch(name)):
                first = next(theirs[0] for theirs, own in self.rows if own.startswith(f"{stack}layers.{{i}}"))
                return first.partition(".{i}")[0], int(match["i"])
        return None

    def depths(self, published: Iterable[str]) -> dict[str, int]:
        """Return how many layers each stack has, by the names of a checkpoint (as of `today`)."""
        found: dict[str, int] = {}
        for name in published:
            if layer := self.layer_of(name):
                stack, number = layer
                found[stack] = max(found.get(stack, 0), number + 1)
        return found

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

    def write(
        self, ours: Mapping[str, Tensor], heads: Collection[str] = (), tied: bool = True
    ) -> tuple[Tensors, Tensors]:
        """Return a published checkpoint of our parameters, and those for which the layout has no place (left).

        Two heads may have one place, as mlm and classify in ModernBERT: it is that of `heads`, of the class that is saved.
        `tied` says whether the output matrix is the token embedding.
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
        copies = {copy: source for copy, source in self.copied.items() if source in published}
        if not tied:
            copies |= {name: self.embedding[0] for name in self.embedding[1:] if self.embedding[0] in published}
        return published | {copy: published[source].clone() for copy, source in copies.items()}, rest

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


def _same(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors have the same shape and numbers, whatever their types."""
    return first is second or (first.shape == second.shape and bool((first == second).all()))


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
