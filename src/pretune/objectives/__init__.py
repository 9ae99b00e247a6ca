"""Objectives by name, and expressions over them.

mlm                       one objective
mlm(rate=0.3)             with options
classify on mix/bilstm    a task on a learned mix of all layers, with LSTMs between them and its head
classify on elmo/biattentive    the same beside vectors of words of its own, with the layers of BCN
mlm+nsp, classify+0.5*lm  joint: one arranges, each corrupts in turn, one forward, all losses
0.9*mlm|0.1*lm            alternating: packs are shared out by weight
a: classify|b: classify   tasks with names of their own

Text among the options stands in double quotes: generate(prefix="translate, please: ").
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, get_type_hints

from torch import nn

from pretune.backbones.backbone import Backbone
from pretune.objectives.objective import Data, Grows, LearnsFromRows, Loss, Objective, TwoSided
from pretune.objectives.pretraining.bilm import BiLM
from pretune.objectives.pretraining.dlm import DLM
from pretune.objectives.pretraining.lm import LM
from pretune.objectives.pretraining.masked_items import Item
from pretune.objectives.pretraining.mlm import MLM
from pretune.objectives.pretraining.nsp import NSP
from pretune.objectives.pretraining.plm import PLM
from pretune.objectives.pretraining.prefix_lm import Prefix
from pretune.objectives.pretraining.rtd import RTD
from pretune.objectives.pretraining.sop import SOP
from pretune.objectives.pretraining.tlm import TLM
from pretune.objectives.pretraining.trtd import TRTD
from pretune.objectives.seq2seq.autoencode import Autoencode
from pretune.objectives.seq2seq.denoise import Denoise
from pretune.objectives.seq2seq.mass import Mass
from pretune.objectives.seq2seq.shuffle import Shuffle
from pretune.objectives.seq2seq.skip_thought import SkipThought
from pretune.objectives.seq2seq.span_corruption import Spans
from pretune.objectives.seq2seq.translate import Translate
from pretune.objectives.task import Task
from pretune.objectives.tasks.answer import Answers
from pretune.objectives.tasks.choose import Choose
from pretune.objectives.tasks.classify import Classify
from pretune.objectives.tasks.contrast import Contrast
from pretune.objectives.tasks.entity import Entity
from pretune.objectives.tasks.generate import Generate
from pretune.objectives.tasks.layer_features import On
from pretune.objectives.tasks.match import Match
from pretune.objectives.tasks.prompt import Prompt
from pretune.objectives.tasks.rank import Rank
from pretune.objectives.tasks.regress import Regress
from pretune.objectives.tasks.renamed_task import Named
from pretune.objectives.tasks.tag import Tag
from pretune.packed import Batch, Capacity, Packed
from pretune.runtime.errors import PretuneError, nearest, quote
from pretune.runtime.parsing import as_tuples, conform, parse_yaml
from pretune.runtime.randomness import Draws
from pretune.runtime.value_ranges import BELOW_1, NOT_NEGATIVE, POSITIVE, SHARE, Interval, check_number
from pretune.text.packing.sequences import Epoch, Packing, Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer

OBJECTIVES: dict[str, type[Any]] = {
    objective.name: objective
    for objective in (
        *(MLM, TLM, RTD, TRTD, NSP, SOP, DLM, LM, BiLM, PLM, Prefix, Autoencode, Item),
        *(Spans, Denoise, Mass, Shuffle, Translate, SkipThought),
        *(Classify, Tag, Answers, Regress, Choose, Match, Rank, Contrast, Entity, Prompt, Generate),
    )
}

# What numbers of options mean wherever they stand; what objectives refuse beyond that, they refuse themselves.
LONGEST = 10_000  # characters of an expression
SIZE, MANY = Interval(1, 1e6), Interval(0, 1e9)
INTERVALS = {
    "dropout": BELOW_1,
    **dict.fromkeys(("masked", "swapped", "negatives", "short", "last"), SHARE),
    "weight": NOT_NEGATIVE,
    **dict.fromkeys(("temperature", "deviation"), POSITIVE),
    **dict.fromkeys(("layers", "width", "heads", "window", "turns", "parts", "beams", "tokens", "best"), SIZE),
    **dict.fromkeys(("longest", "stride", "asked"), SIZE),
    **dict.fromkeys(("hidden", "copies", "overlap", "most", "held"), MANY),
}
_TERM = re.compile(
    r"\s*(?:(?P<own>[A-Za-z_]\w*)\s*:)?\s*(?:(?P<weight>[\d.eE+-]+)\s*\*)?\s*(?P<name>\w+)\s*"
    r"(?:\((?P<options>(?:[^()\"]|\"[^\"]*\")*)\))?"
    r"\s*(?:\bon\s+(?P<layers>\w+)(?:\s*/\s*(?P<top>\w+))?)?\s*"
)


@dataclass(frozen=True)
class Joint:
    """Objectives that share their sequences and the forward. One alone is the usual case."""

    parts: tuple[tuple[float, Objective], ...]  # weight of the loss, objective

    def __post_init__(self) -> None:
        names = [part.name for _, part in self.parts]
        insisting = [part.name for _, part in self.parts if part.insists]
        if len(set(names)) < len(names):
            raise PretuneError(f"{self}: an objective stands in a joint once; weigh it with a number instead")
        if len(insisting) > 1:
            raise PretuneError(
                f"{self}: {' and '.join(insisting)} each arrange text in a way of their own; alternate them with |"
            )
        two_sided = [part.name for _, part in self.parts if hasattr(part, "sides")]
        if two_sided and len(names) > 1:
            raise PretuneError(
                f"{self}: {two_sided[0]} reads one text and writes another, and shares them with no other objective; "
                "alternate them with |"
            )
        growing = [part.name for _, part in self.parts if isinstance(part, Grows)]
        if growing and len(names) > 1:
            raise PretuneError(
                f"{self}: {growing[0]} adds tokens of its own to the text, and shares it with no other objective; "
                "alternate them with |"
            )
        corrupting = [part.name for _, part in self.parts if corrupts(part)]
        if len(corrupting) > 1:
            raise PretuneError(
                f"{self}: {' and '.join(corrupting)} would hide each other's text; alternate them with |"
            )
        needs = {part.pattern for _, part in self.parts if part.pattern is not None}
        if len(needs) > 1:
            patterns = " and ".join(f"{part.name} {part.pattern.name}" for _, part in self.parts if part.pattern)
            raise PretuneError(f"{self}: incompatible patterns of attention ({patterns}); alternate them with |")

    def __str__(self) -> str:
        return "+".join(part.name if weight == 1 else f"{weight:g}*{part.name}" for weight, part in self.parts)

    @property
    def objectives(self) -> list[Objective]:
        """The objectives without their weights."""
        return [part for _, part in self.parts]

    @property
    def stateful(self) -> bool:
        """Whether batches continue one another."""
        return any(part.stateful for part in self.objectives)

    @property
    def looks_inside(self) -> bool:
        """Whether one of them compares layers."""
        return any(getattr(part, "looks_inside", False) for part in self.objectives)

    @property
    def copies(self) -> int:
        """How many different epochs there are; 0: no end of them."""
        return max(getattr(part, "copies", 0) for part in self.objectives)

    def arrange(self, data: Data, packing: Packing, draws: Draws) -> Epoch:
        """The one that insists arranges, else the first."""
        chosen = next((part for part in self.objectives if part.insists), self.objectives[0])
        return chosen.arrange(data, packing, draws.repeat(self.copies))

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: Draws) -> Sequences:
        """Each in turn."""
        for part in self.objectives:
            sequences = part.corrupt(sequences, tokenizer, draws.repeat(self.copies))
        return sequences

    def room(self, packing: Packing) -> dict[str, int]:
        """Targets of all terms."""
        return {term: count for part in self.objectives for term, count in part.room(packing).items()}

    def capacity(self, packing: Packing) -> Capacity | None:
        """Fixed shapes of its batches; None where every batch has its own."""
        room = self.room(packing)
        for part in self.objectives:
            if packing.fixed and isinstance(part, Grows):
                return part.grown(packing).capacity(room)
            if packing.fixed and hasattr(part, "sides"):  # a Named one too
                first, second = (side.capacity(room) for side in part.sides(packing))
                assert first is not None
                return replace(first, second=second)
        return packing.capacity(room)

    def loss(self, heads: nn.ModuleDict, backbone: Backbone, batch: Batch) -> Loss:
        """All losses from one forward. What one of them makes of the text on the device, the others read."""
        # Who looks inside wants all layers, which hold the last one, too.
        shared = Once(backbone, keep="all" if self.looks_inside else None)
        total = Loss()
        for weight, part in sorted(self.parts, key=lambda part: not corrupts(part[1])):
            loss = part.loss(heads[part.name], shared, batch)
            if loss.packed is not None:  # counts and rows stay behind: other ones would be compiled anew
                batch = Batch(loss.packed, batch.targets, carry=batch.carry)
            total.sums |= loss.sums
            total.logs |= loss.logs
            total.weights |= {term: weight * loss.weights.get(term, 1.0) for term in loss.sums}
            total.carry = loss.carry if loss.carry is not None else total.carry
        return total


def corrupts(objective: Objective) -> bool:
    """Whether it changes the text that is read; in a joint, one does at most."""
    return bool(getattr(objective, "corrupts", False))


class Once:
    """A backbone that computes the states of the same tokens once, whoever asks; with `keep`, of these layers for all."""

    def __init__(self, backbone: Backbone, keep: Any = None) -> None:
        self.backbone, self.keep = backbone, keep
        self.known: list[tuple[tuple[Packed, ...], Any, Any]] = []
        self.others: dict[int, Once] = {}

    def beside(self, other: Any) -> Once:
        """Another network that reads the same tokens, once too."""
        if id(other) not in self.others:
            self.others[id(other)] = Once(other, self.keep)
        return self.others[id(other)]

    def __call__(self, *packed: Packed, **options: Any) -> Any:
        options = {name: value for name, value in options.items() if value is not None}
        if self.keep is not None:
            options.setdefault("keep", self.keep)
        for known, asked, states in self.known:
            if all(a is b for a, b in zip(known, packed, strict=True)) and asked == options:
                return states
        states = self.backbone(*packed, **options)
        self.known.append((packed, options, states))
        return states

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backbone, name)


@dataclass(frozen=True)
class Mixture:
    """Joints that take turns: each gets its share of the packs."""

    shares: tuple[tuple[float, Joint], ...]  # shares add up to 1

    def __str__(self) -> str:
        if len(self.shares) == 1:
            return str(self.shares[0][1])
        return "|".join(f"{share:.3g}*{joint}" for share, joint in self.shares)

    @property
    def joints(self) -> list[Joint]:
        """The joints without their shares."""
        return [joint for _, joint in self.shares]

    @property
    def objectives(self) -> list[Objective]:
        """All objectives, each once."""
        return list({part.name: part for joint in self.joints for part in joint.objectives}.values())

    @property
    def stateful(self) -> bool:
        """Whether batches continue one another."""
        return any(joint.stateful for joint in self.joints)

    @property
    def asks_the_host(self) -> bool:
        """Whether an objective cannot do without the host: no recording can hold it."""
        return any(getattr(part, "asks_the_host", False) for part in self.objectives)

    def joined(self, objective: Objective) -> Mixture:
        """The same with this objective beside all others."""
        return Mixture(tuple((share, Joint((*joint.parts, (1.0, objective)))) for share, joint in self.shares))

    def with_part(self, objective: Objective) -> Mixture:
        """The same with this objective in the place of its namesakes."""
        name = objective.name
        shares = [
            (share, Joint(tuple((weight, objective if part.name == name else part) for weight, part in joint.parts)))
            for share, joint in self.shares
        ]
        return Mixture(tuple(shares))


def parse_objective(text: str, tasks: Mapping[str, Mapping[str, Any]] | None = None, **defaults: Any) -> Mixture:
    """Read an expression. `defaults` are options for the objectives that have them, such as `labels`.

    `tasks` are options for those with names of their own.

    >>> str(parse_objective("mlm(rate=0.3)+nsp"))
    'mlm+nsp'
    """
    if len(text) > LONGEST:
        raise PretuneError(f"objective {quote(text)}: longer than {LONGEST:,} characters; name fewer objectives")
    joints = []
    for side in _split(text, "|"):
        parts = [_term(term, defaults, tasks or {}) for term in _split(side, "+")]
        if len(parts) == 1:  # alone, a weight is a share of the packs
            joints.append((parts[0][0], Joint(((1.0, parts[0][1]),))))
        else:
            joints.append((1.0, Joint(tuple(parts))))
    total = sum(share for share, _ in joints)
    if total <= 0:
        raise PretuneError(f"{text}: the weights add up to nothing")
    return Mixture(tuple((share / total, joint) for share, joint in joints))


def alone(objective: Objective) -> Mixture:
    """One objective as a mixture."""
    return Mixture(((1.0, Joint(((1.0, objective),))),))


def _split(text: str, mark: str) -> Iterable[str]:
    """Cut at a mark that stands neither in brackets nor in quotes."""
    quoted = r'"[^"]*"'
    return re.split(rf'\{mark}(?=(?:[^"()]|{quoted}|\((?:[^"()]|{quoted})*\))*$)', text)


def _term(text: str, defaults: dict[str, Any], tasks: Mapping[str, Mapping[str, Any]]) -> tuple[float, Objective]:
    match = _TERM.fullmatch(text)
    if match is None:
        raise PretuneError(f"objective {quote(text)}: expected something like mlm, mlm(rate=0.3) or 0.5*lm")
    name = match["name"]
    if name not in OBJECTIVES:
        raise PretuneError(f"unknown objective {quote(name)}; {nearest(name, OBJECTIVES)}")
    kind = OBJECTIVES[name]
    known = {field.name: field.type for field in fields(kind)}
    given = {**defaults, **tasks.get(match["own"], {})}
    options = {key: tuple(value) if key == "labels" else value for key, value in given.items() if key in known}
    for setting in filter(None, _split(match["options"] or "", ",")):
        key, _, value = setting.partition("=")
        if key.strip() not in known:
            raise PretuneError(f"objective {name}: unknown option {quote(key.strip())}; {nearest(key.strip(), known)}")
        options[key.strip()] = _option(kind, key.strip(), value.strip())
    try:
        weight = float(match["weight"] or 1)
    except ValueError as error:
        raise PretuneError(f"objective {quote(text)}: {quote(match['weight'])} is not a weight") from error
    if not (math.isfinite(weight) and weight >= 0):
        raise PretuneError(f"objective {quote(text)}: a weight is a number of 0 or more")
    objective: Any = kind(**options)
    if match["layers"] is not None:
        if not isinstance(objective, Task) or name in ("generate", "prompt"):  # these have the vocabulary's head
            raise PretuneError(f"objective {text!r}: {name} stands on the last layer; only tasks stand `on` others")
        objective = On(objective, match["layers"], match["top"] or "")  # type: ignore[arg-type]
    if match["own"] is not None:
        if not isinstance(objective, Task):
            raise PretuneError(f"objective {text!r}: only tasks have names of their own, and {name} is none")
        if match["own"] in OBJECTIVES:
            raise PretuneError(f"objective {text!r}: {match['own']} is an objective already; choose another name")
        objective = Named(objective, match["own"])
    return weight, objective


def _option(kind: type[Any], key: str, text: str) -> Any:
    """Return the value of an objective's option, which must be of the type that its field declares."""
    hint, where = get_type_hints(kind)[key], f"objective {kind.name}: {key}={quote(text)}"
    if hint is str and not text.startswith(('"', "'")):
        return text
    value = conform(as_tuples(parse_yaml(text, where)), hint, where)
    if isinstance(value, float) and not math.isfinite(value):
        raise PretuneError(f"{where}: give a finite number")
    if isinstance(value, int | float) and key in INTERVALS:
        check_number(f"objective {kind.name}: {key}", value, INTERVALS[key])
    return value


__all__ = [
    "OBJECTIVES",
    "Data",
    "Grows",
    "Joint",
    "LearnsFromRows",
    "Loss",
    "Mixture",
    "Named",
    "Objective",
    "Task",
    "TwoSided",
    "alone",
    "parse_objective",
]
