"""Markdown pages of the repository: their code blocks, headings and links, and running them from first to last block."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.support.cli import run_line
from tests.support.paths import DOCS, ROOT

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def all_pages() -> list[str]:
    """Return the paths of README, CONTRIBUTING, CHANGELOG and all pages of docs, relative to the repository."""
    pages = sorted(DOCS.rglob("*.md"))
    return ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *(str(path.relative_to(ROOT)) for path in pages)]


def fenced_blocks(page: Path) -> list[tuple[str, str]]:
    """Return the language and the text of each fenced code block."""
    return FENCE.findall(page.read_text(encoding="utf-8"))


def prose(page: Path) -> str:
    """Return a page without its code: fenced blocks, indented blocks after a blank line, and code spans."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    text = re.sub(r"(?<=\n\n)(?:    .*\n)+", "", text)
    return re.sub(r"(`+)[^`](?:.*?[^`])?\1(?!`)", "", text)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings as GitHub makes them.

    A heading that occurs a second time gets the suffix -1.
    """
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = base = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        number = 0
        while slug in found:
            number += 1
            slug = f"{base}-{number}"
        found.add(slug)
    return found


def links(page: Path) -> Iterator[str]:
    """Yield the targets of a page's links and images that are not addresses on the web."""
    for target in re.findall(r"\]\(<?([^)\s>]+)>?(?: \"[^\"]*\")?\)", prose(page)):
        if not re.match(r"[a-z]+:", target):
            yield target


def shell_lines(block: str) -> list[str]:
    """Return the commands of a shell block, with continued lines joined and comments dropped."""
    joined = block.replace("\\\n", " ").splitlines()
    return [line.strip() for line in joined if line.strip() and not line.lstrip().startswith("#")]


def run_page(page: Path, shorten: Callable[[str], str] = str) -> str:
    """Run the sh and python blocks of a page in order, in the current folder, and return what the commands print.

    A yaml block that begins with its file name in a comment is written to that file. Commands of pretune run in this
    process, which is faster; other commands in a shell. The python blocks of a page share their variables. `shorten`
    replaces each command by one with a smaller budget.
    """
    variables: dict[str, Any] = {"__name__": "page"}
    printed = ""
    for language, block in fenced_blocks(page):
        if language == "python":
            exec(compile(block, str(page), "exec", dont_inherit=True), variables)
        elif language == "yaml" and (name := re.match(r"# (\S+\.yaml)\n", block)):
            Path(name[1]).write_text(block, encoding="utf-8")
        elif language == "sh":
            for line in map(shorten, shell_lines(block)):
                printed += run_line(line).stdout if shlex.split(line)[0] == "pretune" else run_shell(line)
    return printed


def run_shell(line: str) -> str:
    """Run a command in a shell that finds this Python and this copy of pretune first, and return what it prints."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    source = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    result = subprocess.run(
        ["sh", "-e", "-c", line], capture_output=True, text=True, env={**os.environ, "PATH": path, "PYTHONPATH": source}
    )
    assert result.returncode == 0, f"{line}\n{result.stderr}"
    return result.stdout
