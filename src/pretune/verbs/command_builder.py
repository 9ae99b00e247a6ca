"""Build the command of a verb for the command line, from the verb's signature and docstring."""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, fields
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pretune.runtime.console import format_result
from pretune.runtime.errors import PretuneError, command_options
from pretune.runtime.recipe import (
    LoadedObject,
    RecipeSection,
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
from pretune.verbs.verb import option_spelling, parse_parameters, split_docstring

COMMON, ADVANCED, ALL_COMMANDS = GROUPS_OF_OPTIONS = ("Options", "Advanced", "Options of all commands")
REPEATED = ("set", "query")  # lists of which each value has its own option: files may follow the value
DISTRIBUTED = ("pretrain", "adapt")  # verbs that torchrun may start in several processes


@dataclass(frozen=True)
class Option:
    """An option of a command: its name in Python, the type to parse it as, its default, and its help."""

    name: str
    kind: Any  # of the value: a type, list[str], dict[str, str] or a Literal
    default: Any
    help: str
    group: str  # the heading in the help under which it is shown
    positional: bool = False
    section: str = ""  # the section of the recipe that it sets a key of
    key: str = ""  # in that section

    @property
    def spelling(self) -> str:
        """Return the command-line spelling of the option, such as --batch-size for batch_size."""
        return option_spelling(self.name)

    @property
    def shows_default(self) -> bool:
        """Return whether help shows the default; it does not if the option is off by default."""
        return not (self.default is None or self.default is False or self.default == ())


def list_options(verb: Callable[..., Any]) -> list[Option]:
    """Return the options of a command, derived from the signature and docstring of its function, `verb`."""
    _, notes = parse_docstring(verb)
    common: Sequence[str] | None = getattr(verb, "common", None)  # without it, all options are
    options: list[Option] = []
    positional = True
    for parameter in inspect.signature(verb).parameters.values():
        name, hint = parameter.name, parameter_types(verb)[parameter.name]
        section = find_section(hint)
        if section is not None:
            for key, option in section_options(verb, name, section).items():  # other keys are set with --set
                kind = _simplify(section_keys(section)[key.name])
                group = COMMON if common is None or option in common else ADVANCED
                text = key.metadata.get("help", "")
                options.append(Option(option, kind, key.default, text, group, section=name, key=key.name))
            continue
        kind = _simplify(hint)
        many = kind == list[str]
        required = parameter.default is inspect.Parameter.empty
        positional &= parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        positional &= required or isinstance(parameter.default, str) or (many and parameter.default == ())
        group = COMMON if common is None or required or positional or name in common else ADVANCED
        default = None if required else parameter.default
        options.append(Option(name, kind, default, notes.get(name, ""), group, positional))
        positional &= not many  # a list takes all that follows
    return [
        *options,
        Option("recipe", str, None, "YAML file with any of these options and recipe keys.", ALL_COMMANDS),
        Option("set", list[str], (), _describe_settings(verb), ALL_COMMANDS),
        Option("json", bool, False, "Print the result as one JSON object on stdout.", ALL_COMMANDS),
    ]


def section_options(verb: Callable[..., Any], name: str, section: type[RecipeSection]) -> dict[Field[Any], str]:
    """Return the keys of the recipe section `name` that options of a command set, with the names of the options.

    In a flat section, such as `budget`, these are all keys; in other sections, the keys that declare an option name.
    Keys that do not apply to the command are left out.
    """
    refused = {option for rule in getattr(verb, "rules", ()) if rule.never for option in rule.options}
    keys: tuple[Field[Any], ...] = fields(section)  # type: ignore[arg-type]
    named = {key: key.name if section.flat else key.metadata.get("option", "") for key in keys}
    taken = inspect.signature(verb).parameters
    return {
        key: option
        for key, option in named.items()
        if option and f"{name}.{key.name}" not in refused and option not in taken
    }


def check_set_once(option: Option, settings: Values) -> None:
    """Raise an error if a command-line option and --set (`settings`) both set the same key of the recipe."""
    if option.key in (settings.get(option.section) or {}):
        raise PretuneError(
            f"{option.spelling} and --set {option.section}.{option.key} set the same key of the recipe; give only one of the two"
        )


def make_command(name: str, verb: Callable[..., Any]) -> Callable[..., None]:
    """Return the cyclopts command of a function (verb), with its parameters as options, --recipe, --set and --json."""
    options = list_options(verb)
    sections = {option.name: option for option in options if option.section}
    signature = inspect.Signature([_cyclopts_parameter(option) for option in options])

    def command(*arguments: Any, **named: Any) -> None:
        if name not in DISTRIBUTED and int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ:
            raise PretuneError(f"`pretune {name}` runs in a single process; start it without torchrun")
        given = signature.bind_partial(*arguments, **named).arguments
        as_json = given.pop("json", False)
        values = without_defaults(verb, read_recipe(given.pop("recipe"))) if given.get("recipe") else {}
        settings = parse_settings(given.pop("set", ()))
        values = merge_recipes(values, settings)
        for option, value in given.items():
            own = sections.get(option)
            if own is not None:
                check_set_once(own, settings)
            values = merge_recipes(values, {option: value} if own is None else {own.section: {own.key: value}})
        with command_options(option.spelling.removeprefix("--") for option in options):
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
    command.__doc__ = parse_docstring(verb)[0]
    command.__signature__ = signature  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in signature.parameters.values()}
    return command


def without_defaults(verb: Callable[..., Any], values: Values) -> Values:
    """Return only those values of a recipe that differ from the command's defaults, since recipes of runs have all."""
    parameters = inspect.signature(verb).parameters
    return {key: x for key, x in values.items() if key not in parameters or parameters[key].default != x}


def parse_docstring(verb: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the description of a command and the help text of each option, from the docstring of its function."""
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


def _cyclopts_parameter(option: Option) -> inspect.Parameter:
    """Return an option as a parameter for cyclopts; it is never required, because a recipe may supply the value."""
    from cyclopts import Parameter

    settings = Parameter(
        name=None if option.positional else option.spelling,
        consume_multiple=option.kind == list[str] and option.name not in REPEATED,
        show_default=option.shows_default,
        help=option.help,
    )
    place = inspect.Parameter.POSITIONAL_OR_KEYWORD if option.positional else inspect.Parameter.KEYWORD_ONLY
    # If pydantic is loaded, cyclopts validates defaults too.
    kind = option.kind | None if option.default is None else option.kind
    return inspect.Parameter(option.name, place, default=option.default, annotation=Annotated[kind, settings])


def _simplify(hint: Any) -> Any:
    """Return the type into which the command line parses an option, given the type hint of its parameter.

    Paths and objects become strings, and sequences become lists of strings.
    """
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        kinds = list(dict.fromkeys(_simplify(kind) for kind in get_args(hint) if kind is not type(None)))
        if list[str] in kinds:
            return list[str]
        if str in kinds:  # other types only in a recipe
            return str
        return Union[tuple(kinds)] if len(kinds) > 1 else kinds[0]
    if isinstance(hint, type) and issubclass(hint, Path | LoadedObject):
        return str
    if origin is None or origin is Literal:
        return hint
    if issubclass(origin, Mapping):
        return dict[str, str]
    return list[str] if issubclass(origin, Sequence) else hint


def check_flags(verb: Callable[..., Any], arguments: Sequence[str]) -> None:
    """Raise an error if a flag of a verb is followed by a value (`--report false`), which would be read as a file."""
    flags = {option.spelling for option in list_options(verb) if option.kind is bool}
    for option, value in pairwise(arguments):
        if option in flags and value.lower() in ("true", "false"):
            no = option.replace("--", "--no-", 1)
            raise PretuneError(f"{option} {value}: a flag takes no value; write {option} or {no}")


def _destroy_process_group() -> None:
    """Leave the process group of torch.distributed, if there is one."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
