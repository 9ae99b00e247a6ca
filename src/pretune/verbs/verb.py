"""The `verb` decorator: what is checked before a verb reads anything.

- Options that apply only in some modes are declared with `only`. One that is given where it does not apply is refused by name: an
  option is used, or it is an error.
- `out=CHECK` says what `--out` may be (see pretune/runtime/output_paths.py).

    @verb(
        only("seed", where="with --mask-rate", when=lambda o: o.mask_rate is not None),
        out=new_file,
    )
    def fill(model, texts, *, mask_rate=None, seed=0, out=None): ...

tests/test_options.py lists the options that apply in every mode; an option that is neither there nor in an `only` fails the test.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar

from pretune.runtime.atomic_io import check_name
from pretune.runtime.errors import PretuneError, quote
from pretune.runtime.output_paths import Check, output
from pretune.runtime.recipe import Section

P = ParamSpec("P")
R = TypeVar("R")
LARGEST_SEED = 1 << 63
Options = SimpleNamespace  # all options of a call by name, with their defaults


@dataclass(frozen=True)
class Only:
    """Options that apply only in one mode of a verb."""

    options: tuple[str, ...]  # names of parameters; of a section's keys SECTION.KEY
    where: str  # completes the sentence "--seed applies only …"
    when: Callable[[Options], bool]

    def check(self, options: Options, given: Sequence[str]) -> None:
        """Refuse those that are given and do not apply."""
        wrong = [name for name in given if any(name == own or name.startswith(f"{own}.") for own in self.options)]
        if wrong and not self.when(options):
            names = " and ".join(filter(None, (", ".join(map(spelled, wrong[:-1])), spelled(wrong[-1]))))
            applies, them = ("applies", "it") if len(wrong) == 1 else ("apply", "them")
            raise PretuneError(f"{names} {applies} only {self.where}; leave {them} out")


def only(*options: str, where: str, when: Callable[[Options], bool]) -> Only:
    """Declare that options apply only where a condition holds.

    The condition sees all options with their defaults, and is asked only where one of these options was given.
    """
    return Only(options, where, when)


def never(*options: str, where: str) -> Only:
    """Declare that keys of a section which the verb takes do not apply to it."""
    return Only(options, where, lambda o: False)


def verb(*rules: Only, **outputs: Check) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Make a verb of a function: its options and outputs are checked first."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            call = signature.bind(*args, **kwargs)
            given = list(given_options(signature, call.arguments))
            call.apply_defaults()
            options = Options(**call.arguments)
            paths = {name: Path(path) for name in outputs if (path := getattr(options, name)) is not None}
            for name, path in paths.items():
                outputs[name](path, options)
            for rule in rules:
                rule.check(options, given)
            check_seed(call.arguments.get("seed"))
            if isinstance(model := call.arguments.get("model"), str | Path):
                check_name(Path(model))  # before work is done that would be lost
            with ExitStack() as locks:
                for name, path in paths.items():
                    locks.enter_context(output(path, outputs[name], options))
                return function(*args, **kwargs)

        checked.rules, checked.outputs = rules, outputs  # type: ignore[attr-defined]
        return checked

    return decorate


def check_seed(seed: int | None) -> None:
    """Refuse a seed that the generators of random numbers do not take."""
    if seed is not None and not -LARGEST_SEED <= seed < LARGEST_SEED:
        raise PretuneError(f"--seed {quote(seed)}: a seed has at most 64 bits; choose a smaller number")


def given_options(signature: inspect.Signature, arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of the options that a call asks something with.

    None asks for nothing, and neither does a default that is off: False, 0 or nothing at all. Of a section, its keys count.
    """
    for name, value in arguments.items():
        default = signature.parameters[name].default
        if isinstance(value, Section):
            yield from (f"{name}.{key}" for key, part in vars(value).items() if part is not None)
        elif value is not None and not (value == default and not default):
            yield name


def spelled(option: str) -> str:
    """Spell an option as the command line does.

    >>> spelled("length_penalty"), spelled("budget.steps"), spelled("batch.tokens")
    ('--length-penalty', '--steps', 'batch.tokens')
    """
    if option.startswith("budget."):
        option = option.removeprefix("budget.")
    return option if "." in option else f"--{option.rstrip('_').replace('_', '-')}"
