"""The help of the command line as text, formatted without cyclopts, which is slow to import."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, get_args, get_origin

from pretune.verbs.command_table import COMMANDS, GROUPS, STAGES

ABOUT = "Transfer learning for text, end to end: pretrain, fine-tune, evaluate, probe, compress, serve."
FLAGS = {
    "--help, -h": "Show this help, or that of a command, and exit.",
    "--version": "Show the version of pretune and exit.",
    "--install-completion": "Install shell completion of commands and options.",
}
WIDEST = 110  # characters of a line
NAMES_WIDTH = 28  # characters of the left column; longer names have a line of their own
METAVARS = {int: "INT", float: "FLOAT", str: "TEXT", list[str]: "TEXT...", bool: ""}


def format_overview() -> str:
    """Return the help of `pretune`: the commands of each stage, with one line each."""
    sections = []
    for stage in STAGES:
        names = dict.fromkeys(name.split()[0] for name, command in COMMANDS.items() if command.stage == stage)
        sections.append((stage, [(name, GROUPS[name] if name in GROUPS else COMMANDS[name].summary) for name in names]))
    return _format("pretune COMMAND", ABOUT, [*sections, ("Options", [*FLAGS.items()])])


def format_group(group: str) -> str:
    """Return the help of a group of commands, such as `pretune tokenizer`."""
    commands = [(name.split()[1], c.summary) for name, c in COMMANDS.items() if name.startswith(f"{group} ")]
    return _format(f"pretune {group} COMMAND", GROUPS[group], [("Commands", commands)])


def format_command(name: str, verb: Callable[..., Any]) -> str:
    """Return the help of a command: its description, then its options, the common ones first."""
    from pretune.verbs.command_builder import GROUPS_OF_OPTIONS, list_options, parse_docstring

    options = list_options(verb)
    sections: list[tuple[str, list[tuple[str, str]]]] = []
    for group in GROUPS_OF_OPTIONS:
        rows = []
        for option in options:
            if option.group == group:
                left = option.spelling
                if option.kind is bool and option.default:
                    left = f"{left}, --no-{left[2:]}"
                elif option.positional:
                    left = f"{option.name.rstrip('_').upper()}, {left}"
                else:
                    left = f"{left}{_metavar(option.kind)}"
                choices = f" Choices: {', '.join(map(str, _choices(option.kind)))}." if _choices(option.kind) else ""
                default = "on" if option.default is True else option.default
                default = f" [default: {default}]" if option.shows_default else ""
                rows.append((left, f"{option.help}{choices}{default}"))
        if rows:
            sections.append((group, rows))
    arguments = "".join(f" [{option.name.rstrip('_').upper()}]" for option in options if option.positional)
    return _format(f"pretune {name}{arguments} [OPTIONS]", parse_docstring(verb)[0], sections)


def _choices(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) is Literal else ()


def _metavar(kind: Any) -> str:
    """Return the placeholder for the value of an option in help, with the separator before it."""
    if get_origin(kind) is dict:
        return ".KEY VALUE"
    return f" {METAVARS.get(kind, 'CHOICE' if _choices(kind) else 'VALUE')}".rstrip()


def _format(usage: str, description: str, sections: Iterable[tuple[str, Sequence[tuple[str, str]]]]) -> str:
    """Return help text: usage, description, and sections of names with explanations in two columns."""
    width = min(shutil.get_terminal_size().columns, WIDEST)
    lines = [f"{_bold('Usage:')} {usage}"]
    for paragraph in description.split("\n\n"):
        lines += ["", *textwrap.wrap(paragraph, width, break_on_hyphens=False)]
    for title, rows in sections:
        column = min(max(len(name) for name, _ in rows), NAMES_WIDTH) + 4
        lines += ["", _bold(title)]
        for name, text in rows:
            wrapped = textwrap.wrap(text, max(width - column, 30), break_on_hyphens=False) or [""]
            if len(name) + 4 > column:
                lines.append(f"  {name}")
            else:
                lines.append(f"  {name:<{column - 2}}{wrapped.pop(0)}".rstrip())
            lines += [f"{'':<{column}}{line}" for line in wrapped]
    return "\n".join(lines)


def _bold(text: str) -> str:
    return f"\033[1m{text}\033[0m" if sys.stdout.isatty() else text
