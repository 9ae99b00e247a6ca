"""Objective expressions: the language in which users name objectives, set their options, and combine them.

mlm                             one objective
mlm(mask_rate=0.3)              an objective with options
classify on mix/bilstm          a task on a learned mix of all layers, with LSTMs between the mix and its head
classify on layers(4,8)         a task on two layers, concatenated
classify on elmo/biattentive    a task on ELMo's mix and learned word vectors, with a biattentive network (BCN)
mlm+nsp, classify+0.5*lm        a sum: one objective arranges the text, each corrupts it, one forward pass, all losses
0.9*mlm|0.1*lm                  a mixture: each batch is for one of the objectives, and the batches are divided by weight
a: classify|b: classify         two tasks of the same kind under their own names

Strings among the options stand in double quotes: generate(prefix="translate, please: "). Mappings stand in braces:
classify(class_weight={spam: 5}).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, get_type_hints

from pretune.objectives.joint import JointObjective, Mixture
from pretune.objectives.objective import Objective
from pretune.objectives.registry import OBJECTIVES, check_objective_name
from pretune.objectives.task import Task
from pretune.objectives.tasks.layer_features import OnLayerFeatures
from pretune.objectives.tasks.renamed_task import RenamedTask
from pretune.runtime.errors import PretuneError, quote, suggest
from pretune.runtime.parsing import as_tuples, parse_yaml, validate_schema
from pretune.runtime.value_ranges import FRACTION, FRACTION_BELOW_1, NOT_NEGATIVE, POSITIVE, Interval, check_number

MAX_EXPRESSION_LENGTH = 10_000  # characters of an expression
SIZE_RANGE, COUNT_RANGE = Interval(1, 1e6), Interval(0, 1e9)
INTERVALS = {
    **dict.fromkeys(("dropout", "kept_masks"), FRACTION_BELOW_1),
    **dict.fromkeys(
        ("mask_replace_prob", "random_replace_prob", "negative_rate", "swap_rate", "short_seq_prob", "mask_last_rate"),
        FRACTION,
    ),
    "discriminator_weight": NOT_NEGATIVE,
    **dict.fromkeys(("temperature", "final_temperature", "deviation"), POSITIVE),
    **dict.fromkeys(
        ("generator_layers", "generator_hidden_size", "generator_heads", "window", "max_turns", "num_parts"), SIZE_RANGE
    ),
    **dict.fromkeys(("num_beams", "max_new_tokens", "n_best", "stride", "ngram_size"), SIZE_RANGE),
    **dict.fromkeys(("max_span_length", "max_ngram", "max_answer_length", "max_question_length"), SIZE_RANGE),
    **dict.fromkeys(("hidden_size", "static_masks", "overlap", "max_candidates", "num_held_out"), COUNT_RANGE),
}
_TERM = re.compile(
    r"\s*(?:(?P<own>[A-Za-z_]\w*)\s*:)?\s*(?:(?P<weight>[\d.eE+-]+)\s*\*)?\s*(?P<name>\w+)\s*"
    r"(?:\((?P<options>(?:[^()\"]|\"[^\"]*\")*)\))?"
    r"\s*(?:\bon\s+(?P<layers>\w+(?:\([\d,\s]*\))?)(?:\s*/\s*(?P<top>\w+))?)?\s*"
)


def parse_objective(text: str, tasks: Mapping[str, Mapping[str, Any]] | None = None, **defaults: Any) -> Mixture:
    """Parse an objective expression such as `mlm(mask_rate=0.3)+nsp` and return the mixture of its objectives.

    `tasks` maps the NAME of a term such as `NAME: classify` to its options; other keywords are options of all terms.

    >>> str(parse_objective("mlm(mask_rate=0.3)+nsp"))
    'mlm+nsp'
    """
    if len(text) > MAX_EXPRESSION_LENGTH:
        raise PretuneError(
            f"objective {quote(text)}: the expression is longer than {MAX_EXPRESSION_LENGTH:,} characters; name fewer objectives"
        )
    joints = []
    for side in _split(text, "|"):
        parts = [_term(term, defaults, tasks or {}) for term in _split(side, "+")]
        if len(parts) == 1:  # the weight of a single objective is its share of the packs
            joints.append((parts[0][0], JointObjective(((1.0, parts[0][1]),))))
        else:
            joints.append((1.0, JointObjective(tuple(parts))))
    total = sum(share for share, _ in joints)
    if total <= 0:
        raise PretuneError(f"objective {quote(text)}: all weights are 0; give at least one objective a weight above 0")
    return Mixture(tuple((share / total, joint) for share, joint in joints))


def add_task_options(text: str, options: Mapping[str, Any]) -> str:
    """Add `options` to the tasks in an objective expression that have them, and return the new expression.

    An option that the expression sets already, or that none of its tasks has, is an error.

    >>> add_task_options("classify(pooling=mean)+0.5*lm", {"threshold": 0.3, "class_weight": {"spam": 5}})
    'classify(pooling=mean,threshold=0.3,class_weight={"spam": 5})+0.5*lm'
    """
    used = set[str]()

    def extend(term: str) -> str:
        match = _TERM.fullmatch(term)
        kind = OBJECTIVES.get(match["name"]) if match else None
        if match is None or kind is None or not issubclass(kind, Task):  # `parse_objective` reports what is wrong
            return term
        own = {key: value for key, value in options.items() if key in {field.name for field in fields(kind)}}  # type: ignore[arg-type]
        given = [setting for setting in _split(match["options"] or "", ",") if setting.strip()]
        for key in own.keys() & {setting.partition("=")[0].strip() for setting in given}:
            raise PretuneError(
                f"objective {quote(term.strip())}: the expression and an option of the command both set {key}; remove one of them"
            )
        used.update(own)
        settings = ",".join([*given, *(f"{key}={format_option(value)}" for key, value in own.items())])
        rest = term[match.end("options") + 1 :] if match["options"] is not None else term[match.end("name") :]
        return f"{term[: match.end('name')]}({settings}){rest}" if own else term

    text = "|".join("+".join(map(extend, _split(side, "+"))) for side in _split(text, "|"))
    for key in options.keys() - used:
        raise PretuneError(f"the objective {quote(text)} has no option {key}; remove this option")
    return text


def format_option(value: Any) -> str:
    """Return the value of an option as text for an objective expression.

    >>> format_option("mean"), format_option(0.3), format_option({"a b": 5})
    ('mean', '0.3', '{"a b": 5}')
    """
    if isinstance(value, Mapping):  # as JSON, which is YAML too; quotes inside strings would end them for `_split`
        text = re.sub(r"\\(.)", lambda m: r"\u0022" if m[1] == '"' else m[0], json.dumps(value, ensure_ascii=False))
        return "".join(c if c.isprintable() else rf"\U{ord(c):08x}" for c in text)  # line breaks of YAML among others
    return str(value).lower() if isinstance(value, bool) else str(value)


def _split(text: str, mark: str) -> Iterable[str]:
    """Split an expression at each character `mark` that is outside of parentheses, braces and quotes."""
    quoted = r'"[^"]*"'
    braces = rf'\{{(?:[^"{{}}]|{quoted})*\}}'
    return re.split(rf'\{mark}(?=(?:[^"(){{}}]|{quoted}|{braces}|\((?:[^"()]|{quoted})*\))*$)', text)


def _term(text: str, defaults: dict[str, Any], tasks: Mapping[str, Mapping[str, Any]]) -> tuple[float, Objective]:
    """Parse a term such as `0.5*mlm(mask_rate=0.3)`; return its weight and its objective.

    `defaults` are options of all terms; `tasks` maps the NAME of a term such as `NAME: classify` to its options.
    """
    match = _TERM.fullmatch(text)
    if match is None:
        raise PretuneError(
            f"objective {quote(text)}: this is not an objective; write something like mlm, mlm(mask_rate=0.3) or 0.5*lm"
        )
    name = match["name"]
    if name not in OBJECTIVES:
        raise PretuneError(f"unknown objective {quote(name)}; {suggest(name, OBJECTIVES)}")
    kind = OBJECTIVES[name]
    known = {field.name: field.type for field in fields(kind)}
    given = {**defaults, **tasks.get(match["own"], {})}
    options = {key: tuple(value) if key == "labels" else value for key, value in given.items() if key in known}
    for setting in filter(None, _split(match["options"] or "", ",")):
        key, _, value = setting.partition("=")
        if key.strip() not in known:
            raise PretuneError(f"objective {name}: unknown option {quote(key.strip())}; {suggest(key.strip(), known)}")
        options[key.strip()] = _option(kind, key.strip(), value.strip())
    try:
        weight = float(match["weight"] or 1)
    except ValueError as error:
        raise PretuneError(
            f"objective {quote(text)}: {quote(match['weight'])} is not a weight; give a number such as 0.5"
        ) from error
    if not (math.isfinite(weight) and weight >= 0):
        raise PretuneError(f"objective {quote(text)}: the weight is negative or not finite; give a number of 0 or more")
    objective: Any = kind(**options)
    if match["layers"] is not None:
        if not isinstance(objective, Task) or objective.uses_language_model_head:
            raise PretuneError(
                f"objective {text!r}: {name} reads the last layer only, because it has no head of its own; remove `on {match['layers']}`"
            )
        objective = OnLayerFeatures(objective, match["layers"], match["top"] or "")  # type: ignore[arg-type]
    if match["own"] is not None:
        if not isinstance(objective, Task):
            raise PretuneError(
                f"objective {text!r}: only tasks can be renamed, and {name} is not a task; remove the name {match['own']!r}"
            )
        if match["own"] in OBJECTIVES:
            raise PretuneError(
                f"objective {text!r}: {match['own']} is already the name of an objective; choose another name"
            )
        check_objective_name(match["own"], f"objective {text!r}")
        objective = RenamedTask(objective, match["own"])
    return weight, objective


def _option(kind: type[Any], key: str, text: str) -> Any:
    """Parse the value `text` of option `key` of the objective class `kind`; raise an error if it is not valid."""
    hint, where = get_type_hints(kind)[key], f"objective {kind.name}: {key}={quote(text)}"
    if hint is str and not text.startswith(('"', "'")):
        return text
    value = validate_schema(as_tuples(parse_yaml(text, where)), hint, where)
    if isinstance(value, float) and not math.isfinite(value):
        raise PretuneError(f"{where}: the value is not finite; give a finite number")
    if isinstance(value, int | float) and key in INTERVALS:
        check_number(f"objective {kind.name}: {key}", value, INTERVALS[key])
    return value
