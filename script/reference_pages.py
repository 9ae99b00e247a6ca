"""Write the pages of docs/reference that follow from the code: command-line.md, recipe-keys.md and python.md.

Usage: script/reference_pages.py
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pretune
from pretune.cli import VERBS
from pretune.runtime.recipe import find_section, parameter_types, section_keys
from pretune.training.recipe_sections import DEFAULTS, SECTIONS, BackTranslation, TokenizerTraining
from pretune.verbs.command_builder import make_command, parse_docstring
from pretune.verbs.command_table import COMMANDS, STAGES

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
MADE = "<!-- Written by script/reference_pages.py. Change the code and run the script instead of editing this page. -->"


def command_line() -> str:
    """Return the page of all commands, with their arguments and options."""
    stages = {stage: [name for name, command in COMMANDS.items() if command.stage == stage] for stage in STAGES}
    lines = [
        "# Command line",
        MADE,
        paragraphs(
            "Every command also takes `--recipe FILE` (a YAML file with any of its options and [recipe keys](recipe-keys.md)), "
            "`--set KEY=VALUE` for one recipe key, `--json` (print the result as one JSON object) and `--help`. Options take "
            "precedence over `--set`, `--set` over the recipe, and the recipe over the defaults. Turn a flag such as `--report` "
            "off with `--no-report`. An option that has no effect in the mode you chose is an error. Each command is also a "
            "[function in Python](python.md)."
        ),
        table(
            ("command", "purpose"),
            [
                (f"[`{name}`](#{anchor(f'pretune {name}')})", first_sentence(VERBS[name]))
                for names in stages.values()
                for name in names
            ],
        ),
    ]
    for title, names in stages.items():
        lines.append(f"## {title}")
        for name in names:
            lines += command(name)
    return "\n\n".join(lines) + "\n"


def command(name: str) -> Iterator[str]:
    """Yield the parts of a command's section: usage, description and options."""
    signature = inspect.signature(make_command(name, VERBS[name]))
    everywhere = ("recipe", "set", "json")
    parameters = [option for option in signature.parameters.values() if option.name not in everywhere]
    arguments = [option for option in parameters if option.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    yield f"### pretune {name}"
    yield paragraphs(parse_docstring(VERBS[name])[0])
    yield f"    pretune {name} {' '.join([*(spell(option) for option in arguments), '[OPTIONS]'])}"
    rows = []
    for option in parameters:
        default = option.default
        shown = "" if default in (None, False, (), inspect.Parameter.empty) else f" Default: `{default}`."
        rows.append((f"`{spell(option)}`", described(option.annotation) + shown))
    yield table(("option", "meaning"), rows)
    sections = {key: find_section(hint) for key, hint in parameter_types(VERBS[name]).items()}
    keys = [key for key, section in sections.items() if section is not None and not section.flat]
    if keys:
        links = ", ".join(f"[`{key}.*`](recipe-keys.md#{anchor(key)})" for key in keys if key in SECTIONS)
        yield f"Recipe keys, for `--set`: {links}."


def described(annotation: Any) -> str:
    """Return the help text of an option and, if it has a fixed set of values, these."""
    text = annotation.__metadata__[0].help
    values = choices(get_args(annotation)[0])
    return f"{text} One of {', '.join(f'`{value}`' for value in values)}." if values else text


def choices(hint: Any) -> tuple[str, ...]:
    """Return the values of a Literal type, also if it is optional, but not if other types are allowed."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    parts = (
        [part for part in get_args(hint) if part is not type(None)] if get_origin(hint) in (Union, UnionType) else []
    )
    return choices(parts[0]) if len(parts) == 1 else ()


def spell(option: inspect.Parameter) -> str:
    """Return an option as it is written: --out, or MODEL for an argument."""
    name = option.name.rstrip("_")
    return name.upper() if option.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD else f"--{name.replace('_', '-')}"


def recipe_keys() -> str:
    """Return the page of the sections of a recipe, with their keys, values, defaults and meanings."""
    lines = [
        "# Recipe keys",
        MADE,
        paragraphs(
            "A recipe is a YAML file with the options of a command, with `_` instead of `-`, and the sections below. Pass it "
            "with `--recipe FILE`, or set single keys with `--set optimizer.lr=1e-4`. Every run folder contains the recipe that "
            "repeats it, `recipe.yaml`. A key that is not set comes from the [preset](presets.md), or else from the defaults "
            "below. A key that has no effect with the other settings is an error."
        ),
        "```yaml\noptimizer: {name: adamw, lr: 3.0e-4}\nschedule: {kind: cosine, warmup_ratio: 0.06}\nbatch: {size: 32, "
        "max_length: 256}\nmonitor: {eval_every: 50, patience: 3}\n```",
        "In Python, a section is an object: `pt.finetune(…, optimizer=pt.Optimizer(lr=3e-4), batch=pt.Batching(size=32))`.",
    ]
    for name, section in {
        **SECTIONS,
        TokenizerTraining.recipe_key: TokenizerTraining,
        BackTranslation.recipe_key: BackTranslation,
    }.items():
        defaults = DEFAULTS.get(section)
        hints, rows = get_type_hints(section), []
        for key in fields(section):
            default = getattr(defaults, key.name, None)
            shown = "" if default is None else f"`{list(default) if isinstance(default, tuple) else default}`"
            rows.append((f"`{name}.{key.name}`", values(hints[key.name], key.metadata), shown, key.metadata["help"]))
        assert set(section_keys(section)) == {key.name for key in fields(section)}
        heading = f"## {name}"
        also = " On the command line, each is also an option: `--steps`." if section.flat else ""
        lines += [heading, inspect.getdoc(section).split("\n")[0] + also]
        lines.append(table(("key", "value", "default", "meaning"), rows))
    return "\n\n".join(lines) + "\n"


def values(hint: Any, metadata: Any) -> str:
    """Return the values that a key of a recipe may have."""
    if found := choices(hint):
        return ", ".join(f"`{value}`" for value in found)
    kind = next(part for part in get_args(hint) if part is not type(None))
    names = {int: "integer", float: "number", bool: "`true` or `false`", str: "name"}
    text = names.get(kind) or "list"
    limits = re.sub(r" and (finite|at most 1e\+12)$", "", str(metadata.get("within", "")))
    return f"{text}, {limits}" if limits else text


def python() -> str:
    """Return the page of all public names, with directives for mkdocstrings."""
    stages = {command.verb: command.stage for command in COMMANDS.values()}
    groups: dict[str, list[str]] = {title: [] for title in (*STAGES, "Types", "Extending")}
    for name in pretune.__all__:
        if name.startswith("register_") or name in ("Objective", "Task", "Family"):
            groups["Extending"].append(name)
        elif name in stages:
            groups[stages[name]].append(name)
        elif name == "load":
            groups["Use"].insert(0, name)
        elif not name.startswith("__"):
            groups["Types"].append(name)
    lines = [
        "# Python",
        MADE,
        paragraphs(
            "`import pretune as pt` has everything on this page. Each [command](command-line.md) is a function with the same "
            "options. Errors that a user can mend are `pt.PretuneError`, with a message of one line."
        ),
    ]
    for title, names in groups.items():
        lines.append(f"## {title}")
        lines.append(
            table(("name", "purpose"), [(f"`pt.{name}`", first_sentence(getattr(pretune, name))) for name in names])
        )
        lines += [directive(name) for name in names]
    return "\n\n".join(lines) + "\n"


def directive(name: str) -> str:
    """Return the directive with which mkdocstrings writes the section of a public name."""
    thing = getattr(pretune, name)
    return (
        f"::: {thing.__module__}.{thing.__qualname__}\n    options:\n      heading: pt.{name}\n      toc_label: {name}"
    )


def first_sentence(thing: Any) -> str:
    """Return the first paragraph of a docstring, on one line."""
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def anchor(heading: str) -> str:
    """Return the anchor of a heading."""
    return heading.lower().replace(" ", "-")


def escape(text: str) -> str:
    """Return a text in which Markdown sees no HTML outside of code spans."""
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in re.split(r"(`[^`]*`)", text))


def paragraphs(text: str) -> str:
    """Return a text with lines of at most 140 characters."""
    parts = [textwrap.fill(part, 140, break_on_hyphens=False, break_long_words=False) for part in text.split("\n\n")]
    return escape("\n\n".join(parts))


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    head = tuple(head)
    cells = [head, ["---"] * len(head), *([escape(cell).replace("|", r"\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


PAGES = {"command-line.md": command_line, "recipe-keys.md": recipe_keys, "python.md": python}


def main() -> None:
    """Write the pages."""
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
