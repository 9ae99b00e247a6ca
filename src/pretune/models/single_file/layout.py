"""The text of an exported file: header, imports, the definitions that are used, and the command-line interface."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

from pretune.models.single_file import interface

LINE_LENGTH = 120
# Names that only annotations use, with the import that defines each.
FOR_ANNOTATIONS = {
    "Any": "from typing import Any",
    "Iterator": "from collections.abc import Iterator",
    "Path": "from pathlib import Path",
    "Sequence": "from collections.abc import Sequence",
    "Tensor": "from torch import Tensor",
    "nn": "from torch import nn",
}


def loaded(node: ast.AST) -> set[str]:
    """Return all names of variables, functions, and classes in a syntax tree, including those in annotations."""
    return {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}


def drop_annotations(node: ast.AST, known: Collection[str]) -> None:
    """Remove type annotations with names that are not among the `known` names of the file."""

    def kept(annotation: ast.expr | None) -> ast.expr | None:
        names = {x.id for x in ast.walk(annotation) if isinstance(x, ast.Name)} if annotation is not None else set()
        return annotation if all(name in known or hasattr(builtins, name) for name in names) else None

    for part in ast.walk(node):
        if isinstance(part, ast.FunctionDef):
            part.returns = kept(part.returns)
        elif isinstance(part, ast.arg):
            part.annotation = kept(part.annotation)
        elif isinstance(part, ast.AnnAssign):
            part.annotation = kept(part.annotation) or ast.Name("object", ast.Load())


def prune(definitions: Mapping[str, ast.stmt], end: ast.Module, public: Collection[str]) -> dict[str, ast.stmt]:
    """Return the definitions that the last part of the file, `end`, needs, directly or through other definitions.

    Methods that nothing calls are removed from classes, except for the `public` ones.
    """
    known = {*definitions, *FOR_ANNOTATIONS}
    for node in definitions.values():
        drop_annotations(node, known)
    while True:
        used, waiting = set[str](), loaded(end)
        while waiting:
            used |= waiting
            waiting = {x for name in waiting if name in definitions for x in loaded(definitions[name])} - used
        kept = {name: node for name, node in definitions.items() if name in used}
        nodes = [*kept.values(), end]
        attributes = {x.attr for node in nodes for x in ast.walk(node) if isinstance(x, ast.Attribute)} | set(public)
        attributes |= {"__len__"} if any(map(measures_batches, nodes)) else set()
        changed = len(kept) < len(definitions)
        for node in kept.values():
            if isinstance(node, ast.ClassDef):
                body = [line for line in node.body if is_used(line, attributes)]
                changed |= len(body) < len(node.body)
                node.body = body
        definitions = kept
        if not changed:
            return dict(kept)


def measures_batches(node: ast.AST) -> bool:
    """Return whether the code in a syntax tree contains len(packed), for which the class `Packed` needs `__len__`."""
    calls = (x for x in ast.walk(node) if isinstance(x, ast.Call) and x.args)
    return any(isinstance(x.args[0], ast.Name) and x.args[0].id == "packed" and isinstance(x.func, ast.Name) and x.func.id == "len" for x in calls)  # fmt: skip


def is_used(line: ast.stmt, attributes: Collection[str]) -> bool:
    """Return whether the definition of a method or a field of a class is needed.

    `attributes` has the names of all attributes that the code of the file reads.
    """
    if isinstance(line, ast.FunctionDef):
        return line.name in attributes or line.name in ("forward", "__init__")
    return not isinstance(line, ast.AnnAssign) or not isinstance(line.target, ast.Name) or line.target.id in attributes


def import_lines(imports: Mapping[str, str]) -> str:
    """Return import statements in groups: the standard library, then other packages, sorted as isort does."""
    joined: dict[str, list[str]] = {}
    for text in sorted(set(imports.values())):
        if text.startswith("from"):
            _, module, _, clause = text.split(" ", 3)
            joined.setdefault(module, []).append(clause)
    lines = [text for text in sorted(set(imports.values())) if text.startswith("import")]
    lines += [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(joined.items())]
    standard = [line for line in lines if line.split(" ")[1].split(".")[0] in sys.stdlib_module_names]
    return "\n".join(standard) + "\n\n" + "\n".join(line for line in lines if line not in standard)


def write_source(header: str, imports: Mapping[str, str], definitions: Mapping[str, ast.stmt], end: str, public: Collection[str]) -> str:  # fmt: skip
    """Return the source of an exported file; `public` are the methods for users, `end` is the last part of the file."""
    tail = ast.parse(end)
    kept = prune(definitions, tail, public)
    constants = [node for node in kept.values() if isinstance(node, ast.Assign)]
    others = [node for node in kept.values() if not isinstance(node, ast.Assign)]
    used = set[str]().union(*(loaded(node) for node in kept.values()), loaded(tail))
    every = {name: text for name, text in {**FOR_ANNOTATIONS, **imports}.items() if name in used}
    # A constant may use a function, and classes come in the order in which they are built.
    plain = [node for node in constants if not isinstance(node.value, ast.Call | ast.Lambda)]
    late = [node for node in constants if node not in plain]
    blocks = [
        f"{header}\n\nfrom __future__ import annotations\n\n{import_lines(every)}\n\n"
        + "\n".join(f"{ast.unparse(node)}{comment_of(node)}" for node in plain),
        *map(to_text, late),
        *map(to_text, others),
        end,
    ]
    return format_source("\n\n\n".join(block for block in blocks if block.strip()))


def to_text(node: ast.stmt) -> str:
    """Return the source of a definition, without the parentheses that `ast.unparse` puts around tuples."""
    lines = []
    for line in ast.unparse(node).splitlines():
        found = re.fullmatch(r"(.* = |\s*return |\s*yield )\((.*)\)", line)
        bare = found and found[1] + found[2]
        lines.append(bare if bare and same_code(bare, line) else line)
    return "\n".join(lines)


def same_code(text: str, other: str) -> bool:
    """Return whether two lines of source have the same syntax tree."""
    try:
        return ast.dump(ast.parse(text.strip())) == ast.dump(ast.parse(other.strip()))
    except SyntaxError:
        return False


def comment_of(node: ast.stmt) -> str:
    """Return the comment that follows a constant on its line in pretune's source, or "" if there is none."""
    names = [x.id for x in ast.walk(node) if isinstance(x, ast.Name)]
    found = re.search(rf"^{names[0]}\b[^#\n]*(  # .*)$", inspect.getsource(interface), re.MULTILINE)
    return found[1] if found else ""


def format_source(source: str) -> str:
    """Return source code formatted by ruff, if it is installed, or else as it is."""
    beside = Path(sys.executable).with_name("ruff")
    program = str(beside) if beside.is_file() else shutil.which("ruff")
    if program is None:
        return source
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "ruff.toml").write_text(f"line-length = {LINE_LENGTH}\n", encoding="utf-8")
        done = subprocess.run(
            [program, "format", "-"], cwd=folder, input=source, capture_output=True, encoding="utf-8", check=False
        )
    return done.stdout if done.returncode == 0 else source
