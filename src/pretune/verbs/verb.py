"""The `verb` decorator: checks the options and outputs of a verb before it reads anything, and completes its docstring.

- Options that apply only in some modes are declared with `only`. Passing one where it does not apply is an error that names it, so
  that no option is ever silently ignored.
- `common=NAMES` declares the options that `--help` shows first; a verb with few options needs none.
- A table in memory (a DataFrame, rows as dicts, …) becomes a file, for parameters whose type includes `options.Table`.
- `out=CHECK` declares what `--out` may be (see pretune/runtime/output_paths.py).

    @verb(
        only("seed", where="with --mask-rate", when=lambda o: o.mask_rate is not None),
        out=check_new_file,
    )
    def fill(model, texts, *, mask_rate=None, seed=0, out=None): ...

tests/verbs/test_options.py lists the options that apply in every mode; an option that is neither there nor in an `only` fails the test.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar

from pretune.runtime.atomic_io import check_file_name
from pretune.runtime.errors import PretuneError, quote, suggest
from pretune.runtime.output_paths import Check, prepare_output
from pretune.runtime.recipe import RecipeSection, find_section, parameter_types, section_keys, table_parameters

P = ParamSpec("P")
R = TypeVar("R")
LARGEST_SEED = 1 << 63
DOCSTRING_WIDTH = 120
Options = SimpleNamespace  # all options of a call by name, with their defaults


@dataclass(frozen=True)
class OptionRule:
    """A rule that some command-line options apply only under a condition on the other options of the command."""

    options: tuple[str, ...]  # names of parameters; keys of a section as SECTION.KEY
    where: str  # completes the sentence "--seed applies only …"
    when: Callable[[Options], bool]

    @property
    def never(self) -> bool:
        """Return whether the options of the rule do not apply to the command under any condition."""
        return self.when is _nowhere

    def check(self, options: Options, given: Sequence[str]) -> None:
        """Raise an error if an option of the rule is in `given` (set by the user) and does not apply."""
        wrong = [name for name in given if any(name == own or name.startswith(f"{own}.") for own in self.options)]
        if wrong and not self.when(options):
            names = " and ".join(
                filter(None, (", ".join(map(option_spelling, wrong[:-1])), option_spelling(wrong[-1])))
            )
            applies = "applies" if len(wrong) == 1 else "apply"
            raise PretuneError(f"{names} {applies} only {self.where}; leave out {names}")


def only(*options: str, where: str, when: Callable[[Options], bool]) -> OptionRule:
    """Return a rule that options apply only if `when`, called with all options of the command, returns true.

    `where` completes the sentence "--option applies only …" in error messages.
    """
    return OptionRule(options, where, when)


def never(*options: str, where: str) -> OptionRule:
    """Return a rule that some recipe keys never apply to a command.

    `where` completes the sentence "KEY applies only …" in error messages.
    """
    return OptionRule(options, where, _nowhere)


def _nowhere(o: Options) -> bool:
    return False


def verb(
    *rules: OptionRule, common: Sequence[str] | None = None, **outputs: Check
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a command's function: check its options and output paths, and add help on shared options.

    `common` names the options that most users need, besides the required ones; `--help` shows all others under "Advanced".
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                call = signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(
                    explain_call(function, rules, args, kwargs) or f"{function.__name__}(): {error}"
                ) from None
            save_tables(function, call.arguments)
            given = list(set_options(signature, call.arguments))
            call.apply_defaults()
            options = Options(**call.arguments)
            paths = {name: Path(path) for name in outputs if (path := getattr(options, name)) is not None}
            for name, path in paths.items():
                outputs[name](path, options)
            for rule in rules:
                rule.check(options, given)
            check_seed(call.arguments.get("seed"))
            if isinstance(model := call.arguments.get("model"), str | Path):
                check_file_name(Path(model))  # before any work is done that would be lost
            with ExitStack() as locks:
                for name, path in paths.items():
                    locks.enter_context(prepare_output(path, outputs[name], options))
                return function(*call.args, **call.kwargs)

        checked.rules, checked.outputs, checked.common = rules, outputs, common  # type: ignore[attr-defined]
        checked.__doc__ = complete_docstring(function)
        return checked

    return decorate


def explain_call(
    function: Callable[..., Any], rules: Sequence[OptionRule], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str:
    """Return what is wrong with the arguments of a call and what to do, or "" if their names and number are right."""
    parameters = inspect.signature(function).parameters
    name = f"{function.__name__}()"
    for unknown in (key for key in kwargs if key not in parameters):
        sections = [
            f"{option}={section.__name__}({unknown}={quote(kwargs[unknown])})"
            for option, hint in parameter_types(function).items()
            if (section := find_section(hint)) and unknown in section_keys(section)
            if not any(rule.never and f"{option}.{unknown}" in rule.options for rule in rules)
        ]
        advice = f"give {' or '.join(sections)}" if sections else suggest(unknown, parameters)
        return f"{name} has no parameter {unknown!r}; {advice}"
    positional = [key for key, own in parameters.items() if own.kind is own.POSITIONAL_OR_KEYWORD]
    if len(args) > len(positional):
        return (
            f"{name} takes {len(positional)} arguments without a name ({', '.join(positional)}), but {len(args)} were given; "
            "give the others by name"
        )
    required = [key for key, own in parameters.items() if own.default is own.empty]
    missing = [key for key in required if key not in {*positional[: len(args)], *kwargs}]
    return f"{name} needs {' and '.join(missing)}; give {', '.join(f'{key}=…' for key in missing)}" if missing else ""


def save_tables(function: Callable[..., Any], arguments: dict[str, Any]) -> None:
    """Replace each table in memory among the arguments of a command, such as a DataFrame, by a file with its rows."""
    from pretune.text.corpus.in_memory_tables import tables_to_files

    defaults = inspect.signature(function).parameters
    for name in table_parameters(function):
        nothing = defaults[name].default == () and isinstance(arguments.get(name), list | tuple) and not arguments[name]
        if name in arguments and not nothing:
            arguments[name] = tables_to_files(arguments[name], name)


def complete_docstring(function: Callable[..., Any]) -> str:
    """Return the docstring of a command, with the help of shared options added to its Parameters section."""
    description, sections = split_docstring(function)
    own = parse_parameters(sections.get("Parameters", ""))
    shared = {
        name: hint.__metadata__[0]
        for name, hint in parameter_types(function, include_extras=True).items()
        if hasattr(hint, "__metadata__")
    }
    notes = {name: own.get(name) or shared.get(name, "") for name in inspect.signature(function).parameters}
    wrap = textwrap.TextWrapper(
        DOCSTRING_WIDTH, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False, break_long_words=False
    )
    body = "\n".join(f"{name}\n{wrap.fill(note)}" for name, note in notes.items())
    sections = ({"Parameters": body} if notes else {}) | {k: v for k, v in sections.items() if k != "Parameters"}
    return "\n\n".join([description, *(f"{title}\n{'-' * len(title)}\n{text}" for title, text in sections.items())])


def split_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the description of a NumPy-style docstring, and its sections by title."""
    description, *rest = re.split(r"\n\n(Parameters|Examples)\n-+\n", inspect.cleandoc(function.__doc__ or ""))
    return description, dict(zip(rest[::2], rest[1::2], strict=True))


def parse_parameters(section: str) -> dict[str, str]:
    """Return the text of each parameter in the Parameters section of a docstring, on one line.

    >>> parse_parameters("seed\\n    Random\\n    seed.")
    {'seed': 'Random seed.'}
    """
    found = re.findall(r"^(\w+)\n((?:[ ]{4}.*\n?)+)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def check_seed(seed: int | None) -> None:
    """Raise an error for a seed that random number generators do not accept."""
    if seed is not None and not -LARGEST_SEED <= seed < LARGEST_SEED:
        raise PretuneError(f"--seed {quote(seed)}: a seed has at most 64 bits; choose a smaller number")


def set_options(signature: inspect.Signature, arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the options that a call sets to a value; a key of a recipe section is named SECTION.KEY."""
    for name, value in arguments.items():
        default = signature.parameters[name].default
        if isinstance(value, RecipeSection):
            yield from (f"{name}.{key}" for key, part in vars(value).items() if part is not None)
        elif value is not None and not (value == default and not default):
            yield name


def option_spelling(option: str) -> str:
    """Return the spelling of an option on the command line, given its name in Python.

    >>> option_spelling("length_penalty"), option_spelling("budget.steps"), option_spelling("batch.tokens")
    ('--length-penalty', '--steps', 'batch.tokens')
    """
    if option.startswith("budget."):
        option = option.removeprefix("budget.")
    return option if "." in option else f"--{option.rstrip('_').replace('_', '-')}"
