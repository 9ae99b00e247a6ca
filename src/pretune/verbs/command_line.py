"""Build the command of a verb for the command line, from the verb's signature and docstring."""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from cyclopts import Group, Parameter

from pretune.runtime.console import format_result
from pretune.runtime.errors import PretuneError, command_options
from pretune.runtime.recipe import (
    LoadedObject,
    Values,
    find_section,
    merge_recipes,
    parameter_types,
    parse_settings,
    read_recipe,
    section_keys,
    validate_arguments,
)
from pretune.verbs.results import ResultTable
from pretune.verbs.verb import parse_parameters, split_docstring

COMMON, ADVANCED, ALL_COMMANDS = (
    Group(name, sort_key=number) for number, name in enumerate(("Options", "Advanced", "Options of all commands"))
)
DISTRIBUTED = ("pretrain", "adapt")  # verbs that torchrun may start in several processes


def make_command(name: str, verb: Callable[..., Any]) -> Callable[..., None]:
    """Return the cyclopts command of a function (verb), with its parameters as options, --recipe, --set and --json."""
    description, notes = parse_docstring(verb)
    common: Sequence[str] | None = getattr(verb, "common", None)  # without it, all options are
    homes: dict[str, str] = {}  # option → its section of the recipe, if it is in one
    options: list[inspect.Parameter] = []
    positional = True
    for parameter in inspect.signature(verb).parameters.values():
        hint = parameter_types(verb)[parameter.name]
        section = find_section(hint)
        if section is not None:
            if section.flat:  # other sections are set with --set
                for field in fields(section):  # type: ignore[arg-type]
                    homes[field.name] = parameter.name
                    kind = section_keys(section)[field.name]
                    group = COMMON if common is None or field.name in common else ADVANCED
                    options.append(_option(field.name, kind, field.default, field.metadata.get("help", ""), group))
            continue
        many = _simplify(hint) == list[str]
        positional &= parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        given = parameter.default is inspect.Parameter.empty or isinstance(parameter.default, str)
        positional &= given or (many and parameter.default == ())
        help_text = notes.get(parameter.name, "")
        required = positional or parameter.default is inspect.Parameter.empty
        group = COMMON if common is None or required or parameter.name in common else ADVANCED
        options.append(_option(parameter.name, hint, parameter.default, help_text, group, positional=positional))
        positional &= not many  # a list takes all that follows
    options += [
        _option("recipe", str, None, "YAML file with any of these options and recipe keys.", ALL_COMMANDS),
        _option("set", list[str], (), _describe_settings(verb), ALL_COMMANDS),
        _option("json", bool, False, "Print the result as one JSON object on stdout.", ALL_COMMANDS),
    ]
    signature = inspect.Signature(options)

    def command(*arguments: Any, **named: Any) -> None:
        if name not in DISTRIBUTED and int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ:
            raise PretuneError(f"`pretune {name}` runs in a single process; start it without torchrun")
        given = signature.bind_partial(*arguments, **named).arguments
        as_json = given.pop("json", False)
        values = without_defaults(verb, read_recipe(given.pop("recipe"))) if given.get("recipe") else {}
        values = merge_recipes(values, parse_settings(given.pop("set", ())))
        for option, value in given.items():
            values = merge_recipes(values, {homes[option]: {option: value}} if option in homes else {option: value})
        with command_options(option.name.rstrip("_").replace("_", "-") for option in options):
            result = verb(**validate_arguments(verb, values, name))
        _destroy_process_group()
        if os.environ.get("RANK", "0") != "0":  # only the first process prints the result
            return
        if as_json:
            print(json.dumps(result.describe(), ensure_ascii=False, default=str), flush=True)
        else:
            print(format_result(result.table() if hasattr(result, "table") else result.describe()), flush=True)
        if isinstance(result, ResultTable) and result.failure:
            raise PretuneError(result.failure)

    command.__name__ = verb.__name__
    command.__doc__ = description
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {option.name: option.annotation for option in options}
    return command


def without_defaults(verb: Callable[..., Any], values: Values) -> Values:
    """Return recipe values except those equal to a command's defaults: recipes of runs contain all options."""
    parameters = inspect.signature(verb).parameters
    return {key: x for key, x in values.items() if key not in parameters or parameters[key].default != x}


def parse_docstring(verb: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the description of a command and the help text of each of its options, from the function's docstring."""
    description, sections = split_docstring(verb)
    return re.sub(r"(?<!\n)\n(?!\n)", " ", description), parse_parameters(sections.get("Parameters", ""))


def _describe_settings(verb: Callable[..., Any]) -> str:
    """Return the help text of --set: the recipe sections of a command, with the keys that apply to it."""
    refused = {option for rule in getattr(verb, "rules", ()) if rule.never for option in rule.options}
    sections = []
    for name, section in ((name, find_section(hint)) for name, hint in parameter_types(verb).items()):
        if section is not None and not section.flat:
            keys = [key for key in section_keys(section) if f"{name}.{key}" not in refused]
            sections.append(f"{name} ({', '.join(keys)})")
    text = "KEY=VALUE for any key of the recipe"
    return f"{text}, e.g. optimizer.lr=1e-4. Sections and keys: {'; '.join(sections)}." if sections else f"{text}."


def _option(
    name: str, hint: Any, default: Any, text: str, group: Group, *, positional: bool = False
) -> inspect.Parameter:
    """Return the cyclopts parameter of an option with the help `text`; optional, since a recipe may supply it."""
    simple = _simplify(hint)
    if default is inspect.Parameter.empty:
        default = None
    many = simple == list[str]
    show = not (default is None or default is False or default == ())
    settings = Parameter(
        name=None if positional else _spell(name),
        consume_multiple=many and name != "set",
        show_default=show,
        help=text,
        group=group,
    )
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD if positional else inspect.Parameter.KEYWORD_ONLY
    if default is None:  # if pydantic is loaded, cyclopts validates defaults too
        simple = simple | None
    return inspect.Parameter(name, kind, default=default, annotation=Annotated[simple, settings])


def _spell(name: str) -> str:
    """Return the command-line spelling of a parameter, such as --batch-size for batch_size."""
    return f"--{name.rstrip('_').replace('_', '-')}"


def _simplify(hint: Any) -> Any:
    """Return the type to parse an option as, for a type hint: strings for paths and objects, lists for sequences."""
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        kinds = list(dict.fromkeys(_simplify(kind) for kind in get_args(hint) if kind is not type(None)))
        if list[str] in kinds:
            return list[str]
        if str in kinds:  # other types only in a recipe
            return str
        return Union[tuple(kinds)] if len(kinds) > 1 else kinds[0]
    if hint in (Path, LoadedObject):
        return str
    if origin is None or origin is Literal:
        return hint
    if issubclass(origin, Mapping):
        return dict[str, str]
    return list[str] if issubclass(origin, Sequence) else hint


def check_flags(verb: Callable[..., Any], arguments: Sequence[str]) -> None:
    """Raise an error if a flag of a verb is followed by a value (`--report false`), which would be read as a file."""
    flags = {_spell(option) for option, hint in parameter_types(verb).items() if hint is bool} | {"--json"}
    for option, value in pairwise(arguments):
        if option in flags and value.lower() in ("true", "false"):
            no = option.replace("--", "--no-", 1)
            raise PretuneError(f"{option} {value}: a flag takes no value; write {option} or {no}")


def _destroy_process_group() -> None:
    """Leave the process group of torch.distributed, if there is one."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
