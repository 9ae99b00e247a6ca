"""Read, merge and check recipes: the options of a command (verb) as YAML, strict and typed.

The signature of a verb is the only place where its options are written down. A recipe file, `--set key=value` and command-line
options all end in `validate_arguments`, which checks them against that signature and names the nearest valid key for a wrong one.
"""

from __future__ import annotations

import builtins
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, ClassVar, Union, get_args, get_origin, get_type_hints

from pretune.runtime.errors import PretuneError, quote, suggest
from pretune.runtime.parsing import parse_yaml, read_text, suggest_choice, yaml_loader_and_dumper

if TYPE_CHECKING:
    from pydantic import BaseModel

Values = dict[str, Any]
LARGEST = 1 << 20  # bytes of a recipe file


class RecipeSection:
    """A group of settings in a recipe, such as `optimizer`; each subclass is a frozen dataclass of the allowed keys.

    If `flat` is True, each key is also a command-line option, such as `--steps` for `budget.steps`.
    """

    flat: ClassVar[bool] = False
    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}


def read_recipe(path: str | Path) -> Values:
    """Read a recipe, a YAML file with the options of a command, as nested dictionaries."""
    path = Path(path)
    content = parse_yaml(read_text(path, LARGEST), str(path))
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise PretuneError(
            f"{path}: a recipe must be a mapping of keys to values, not a {type(content).__name__}; write `key: value` on each line"
        )
    _check_keys(content, str(path))
    return content


def _check_keys(values: Mapping[Any, Any], where: str) -> None:
    """Raise an error if a key of a recipe is not a string, because YAML parses keys such as `1:` as other types.

    `where` names the recipe in errors.
    """
    for key, value in values.items():
        if not isinstance(key, str):
            raise PretuneError(f"{where}: the key {quote(key)} is not a string; put the key in quotes")
        if isinstance(value, Mapping):
            _check_keys(value, where)


def write_recipe(values: Mapping[str, Any]) -> str:
    """Return recipe settings as YAML text that `read_recipe` can read."""
    import yaml

    _, dumper = yaml_loader_and_dumper()
    return yaml.dump(dict(values), Dumper=dumper, sort_keys=False, allow_unicode=True)


def parse_settings(settings: Iterable[str]) -> Values:
    """Parse settings such as `optimizer.lr=1e-4` into nested dictionaries.

    >>> parse_settings(["optimizer.lr=1e-4", "seed=3"])
    {'optimizer': {'lr': 0.0001}, 'seed': 3}
    """
    values: Values = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise PretuneError(f"--set {quote(setting)}: expected key=value, for example --set optimizer.lr=1e-4")
        value = parse_yaml(text, f"--set {quote(key)}") if text else None
        if isinstance(value, Mapping):
            _check_keys(value, f"--set {quote(key)}")
        inner = values
        *path, last = key.strip().split(".")
        for part in path:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                raise PretuneError(
                    f"--set {quote(setting)}: {quote(part)} already has a value; remove one of the two settings"
                )
        inner[last] = value
    return values


def merge_recipes(base: Mapping[str, Any], over: Mapping[str, Any]) -> Values:
    """Return the settings of `base` and `over`; where both have a value, that of `over` is used.

    Nested sections are merged key by key.

    >>> merge_recipes({"optimizer": {"lr": 1, "eps": 2}}, {"optimizer": {"lr": 3}})
    {'optimizer': {'lr': 3, 'eps': 2}}
    """
    merged = dict(base)
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = merge_recipes(merged[key], value)
        else:
            merged[key] = value
    return merged


def flatten_settings(settings: Mapping[str, Any], prefix: str = "") -> Values:
    """Return nested settings as one flat mapping, with keys such as `optimizer.lr`; `prefix` precedes each key.

    >>> flatten_settings({"seed": 1, "optimizer": {"lr": 0.1}})
    {'seed': 1, 'optimizer.lr': 0.1}
    """
    flat: Values = {}
    for key, value in settings.items():
        name = f"{prefix}{key}"
        flat |= flatten_settings(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return flat


def validate_arguments(verb: Callable[..., Any], values: Mapping[str, Any], name: str) -> Values:
    """Check the values of a recipe against the parameters of `verb`, the function of a command.

    Return the values as arguments of the function, converted to the types of its parameters; `name` names the recipe in
    errors.
    """
    from pydantic import ValidationError

    # `from` is a Python keyword, so the parameter is called from_.
    values = {f"{key}_" if f"{key}_" in parameter_types(verb) else key: value for key, value in values.items()}
    try:
        checked = _model(verb).model_validate(values)
    except ValidationError as error:
        raise PretuneError(f"{name}: " + "; ".join(_explain(verb, problem) for problem in error.errors())) from error
    return {key: getattr(checked, key) for key in checked.model_fields_set}


@cache
def _model(verb: Callable[..., Any]) -> type[BaseModel]:
    """Return a pydantic model of `verb`, the function of a command: its parameters with their types and defaults."""
    from pydantic import ConfigDict, create_model

    keys: dict[str, Any] = {}
    for parameter, hint in parameter_types(verb).items():
        default = inspect.signature(verb).parameters[parameter].default
        keys[parameter] = (hint, ... if default is inspect.Parameter.empty else default)
    return create_model(verb.__name__, __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=True), **keys)


class LoadedObject:
    """A type that marks a parameter for which Python callers may pass an object in place of a path."""


class InMemoryTable(LoadedObject):
    """A type that marks a parameter for which Python callers may pass a table in memory in place of a file."""


@cache
def table_parameters(verb: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the parameters of `verb`, the function of a command, that may be tables in memory."""
    return tuple(name for name, hint in parameter_types(verb).items() if _takes_tables(hint))


def _takes_tables(hint: Any) -> bool:
    return hint is InMemoryTable or any(map(_takes_tables, get_args(hint)))


@cache
def parameter_types(verb: Callable[..., Any], include_extras: bool = False) -> dict[str, Any]:
    """Return the types of the parameters of `verb`, the function of a command, by parameter name.

    With `include_extras`, the types keep their annotations, such as help texts.
    """
    found = get_type_hints(verb, localns=_Names(vars(inspect.getmodule(verb))), include_extras=include_extras)
    found.pop("return", None)
    return found


class _Names(dict[str, Any]):
    def __missing__(self, key: str) -> Any:
        return getattr(builtins, key, LoadedObject)


def find_section(hint: Any) -> type[RecipeSection] | None:
    """Return the RecipeSection inside a type hint such as `Budget | None`, or None if there is none."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, RecipeSection)), None)


def section_keys(section: type[RecipeSection]) -> dict[str, Any]:
    """Return the names and types of the keys of a RecipeSection."""
    types = get_type_hints(section)
    return {field.name: types[field.name] for field in fields(section)} if is_dataclass(section) else {}


def _explain(verb: Callable[..., Any], problem: Any) -> str:
    """Return an error message for `problem`, which pydantic found in the arguments of a command.

    `verb` is the function of the command.
    """
    # Parts of the location that are not keys (branches of a union) are of no use to people.
    known: dict[str, Any] = parameter_types(verb)
    unknown = problem["type"] in ("extra_forbidden", "unexpected_keyword_argument")
    keys: list[str] = []
    for part in map(str, problem["loc"]):
        if part in known:
            keys.append(part)
            section = find_section(known[part])
            known = section_keys(section) if section else {}
        elif unknown and part == str(problem["loc"][-1]):
            keys.append(part)
    key = ".".join(keys)
    if unknown:
        return f"unknown key {key!r}; {suggest(keys[-1], known)}"
    if problem["type"] == "missing":
        return f"{key!r} is missing: give --{key.replace('_', '-')} or put it in the recipe"
    message = problem["msg"].removeprefix("Value error, ")
    return f"{key!r}: {message[0].lower()}{message[1:]}, got {quote(problem['input'])}{suggest_choice(problem)}"
