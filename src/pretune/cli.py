"""The command line: one command per verb, built from the verb's signature and docstring.

Each command also takes --recipe FILE, --set KEY=VALUE (any key of the recipe) and --json (print the result as one JSON object on
stdout). Options take precedence over --set, --set over the recipe, and the recipe over the defaults.
"""

from __future__ import annotations

import errno
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

from cyclopts import App, Parameter

import pretune
from pretune.runtime.console import format_result
from pretune.runtime.errors import PretuneError, command_options, shorten
from pretune.runtime.progress import log_info
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
from pretune.verbs.verb import parse_parameters, split_docstring

VERBS: dict[str, Callable[..., Any]] = {
    "quickstart": pretune.quickstart,
    "tokenizer train": pretune.train_tokenizer,
    "tokenizer inspect": pretune.inspect_tokenizer,
    "histories": pretune.histories,
    "prepare": pretune.prepare,
    "phrases": pretune.phrases,
    "pretrain": pretune.pretrain,
    "adapt": pretune.adapt,
    "finetune": pretune.finetune,
    "tune": pretune.tune,
    "ulmfit": pretune.ulmfit,
    "evaluate": pretune.evaluate,
    "compare": pretune.compare,
    "contamination": pretune.contamination,
    "compress": pretune.compress,
    "distill": pretune.distill,
    "prune": pretune.prune,
    "quantize": pretune.quantize,
    "predict": pretune.predict,
    "ask": pretune.ask,
    "fill": pretune.fill,
    "embed": pretune.embed,
    "generate": pretune.generate,
    "translate": pretune.translate,
    "neighbors": pretune.neighbors,
    "vectors train": pretune.train_vectors,
    "import": pretune.import_model,
    "export": pretune.export,
    "show": pretune.show,
    "bench device": pretune.bench_device,
}
GROUPS = {
    "tokenizer": "Train or inspect a tokenizer.",
    "vectors": "Train word vectors.",
    "bench": "Measure the speed of this machine.",
}
DISTRIBUTED = ("pretrain", "adapt")  # verbs that torchrun may start in several processes
FILE_ERRORS = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR,
    errno.ENAMETOOLONG, errno.ELOOP, errno.EIO, errno.ESTALE, errno.ENOENT, errno.ENOTEMPTY, errno.EBUSY, errno.ETIMEDOUT,
)  # fmt: skip
OTHER_ADVICE = {errno.ENAMETOOLONG: "shorten the name", errno.ENOENT: "was it removed while the command ran?"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command with command-line arguments; a user's error prints one line on stderr and exits with status 1."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        check_flags(arguments)
        make_app()(arguments)
    except PretuneError as error:
        _fail(str(error))
    except BrokenPipeError:  # the reader of the output, such as `head`, is done
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        if error.errno not in FILE_ERRORS:
            raise
        advice = OTHER_ADVICE.get(error.errno, "free some space, or choose another place")
        _fail(f"{shorten(str(error.filename or 'output'), 200)}: {error.strerror}; {advice}")
    except KeyboardInterrupt:
        log_info("interrupted")
        sys.exit(130)
    except (MemoryError, RuntimeError) as error:
        from pretune.runtime.devices import out_of_memory  # imports torch, which `--help` does without

        where = out_of_memory(error)
        if where is None:
            raise
        _fail(
            f"{where} is out of memory; use smaller batches (--set batch.microbatch_tokens=…, batch.size=… or batch.max_length=…), shorter "
            "texts, or a smaller model"
        )


def _fail(message: str) -> None:
    """Print an error message, with the process rank under torchrun, and exit."""
    rank = os.environ.get("RANK", "0")
    print(f"error: {message}" if rank == "0" else f"error in process {rank}: {message}", file=sys.stderr, flush=True)
    sys.exit(1)


def _destroy_process_group() -> None:
    """Leave the process group of torch.distributed, if there is one."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()


def check_flags(arguments: Sequence[str]) -> None:
    """Raise an error if a flag is followed by a value (`--report false`), which would be read as a file."""
    name = next((name for name in VERBS if list(arguments[: len(name.split())]) == name.split()), None)
    if name is None:
        return
    flags = {_spell(option) for option, hint in parameter_types(VERBS[name]).items() if hint is bool} | {"--json"}
    for option, value in pairwise(arguments):
        if option in flags and value.lower() in ("true", "false"):
            no = option.replace("--", "--no-", 1)
            raise PretuneError(f"{option} {value}: a flag takes no value; write {option} or {no}")


def make_app() -> App:
    """Return the command-line application, with one command per verb (a function of the public interface)."""
    app = App(
        name="pretune",
        help="Transfer learning for text, end to end: pretrain, fine-tune, evaluate, compress.",
        version=pretune.__version__,
        help_format="plaintext",
        default_parameter=Parameter(negative_iterable=()),
    )
    groups = {name: App(name=name, help=text) for name, text in GROUPS.items()}
    for group in groups.values():
        app.command(group)
    for name, verb in VERBS.items():
        group_name, _, short = name.rpartition(" ")
        (groups[group_name] if group_name else app).command(make_command(name, verb), name=short)
    return app


def make_command(name: str, verb: Callable[..., Any]) -> Callable[..., None]:
    """Return the cyclopts command of a function (verb), with its parameters as options, --recipe, --set and --json."""
    description, notes = parse_docstring(verb)
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
                    options.append(_option(field.name, kind, field.default, field.metadata.get("help", "")))
            continue
        many = _simplify(hint) == list[str]
        positional &= parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        given = parameter.default is inspect.Parameter.empty or isinstance(parameter.default, str)
        positional &= given or (many and parameter.default == ())
        help_text = notes.get(parameter.name, "")
        options.append(_option(parameter.name, hint, parameter.default, help_text, positional=positional))
        positional &= not many  # a list takes all that follows
    options += [
        _option("recipe", str, None, "YAML file with any of these options and recipe keys."),
        _option("set", list[str], (), _describe_settings(verb)),
        _option("json", bool, False, "Print the result as one JSON object on stdout."),
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


def _option(name: str, hint: Any, default: Any, text: str, *, positional: bool = False) -> inspect.Parameter:
    """Return the cyclopts parameter of an option with the help `text`; optional, because a recipe may supply it."""
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
    if isinstance(hint, type) and issubclass(hint, Path | LoadedObject):
        return str
    if origin is None or origin is Literal:
        return hint
    if issubclass(origin, Mapping):
        return dict[str, str]
    return list[str] if issubclass(origin, Sequence) else hint
