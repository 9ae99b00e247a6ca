"""Format results for the console as aligned lines and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def format_result(result: Any, indent: int = 0) -> str:
    """Return a JSON-like result as text: one line per value, a table for a list of rows, and indented sections.

    >>> print(format_result({"tokens": 1234567, "share": 0.25}))
    tokens  1,234,567
    share   0.25
    """
    pad = "  " * indent
    if isinstance(result, Mapping):
        lines = []
        simple = [str(key) for key, value in result.items() if _is_simple(value)]
        width = max(map(len, simple), default=0)
        for key, value in result.items():
            name = str(key).replace("_", " ")
            if _is_simple(value):
                lines.append(f"{pad}{name:<{width}}  {_format(value)}".rstrip())
            else:
                lines += [f"{pad}{name}", format_result(value, indent + 1)]
        return "\n".join(lines)
    if isinstance(result, Sequence) and not isinstance(result, str):
        if result and all(isinstance(row, Mapping) for row in result):
            return _table(result, pad)
        return "\n".join(f"{pad}{_format(value)}" for value in result)
    return pad + _format(result)


def _is_simple(value: Any) -> bool:
    if isinstance(value, Mapping):
        return not value
    if isinstance(value, Sequence) and not isinstance(value, str):
        return all(isinstance(item, str | int | float) for item in value) and sum(len(str(i)) for i in value) < 200
    return True


def _format(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_format(item)}" for key, item in value.items()) or "-"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(f"[{_format(item)}]" if isinstance(item, list) else _format(item) for item in value) or "-"
    return str(value)


def _table(rows: Sequence[Mapping[str, Any]], pad: str) -> str:
    names = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[name.replace("_", " ") for name in names]] + [[_format(row.get(n, "")) for n in names] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(names))]
    right = [all(isinstance(row.get(n, 0), int | float) for row in rows) for n in names]
    lines = []
    for row in cells:
        parts = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)]
        lines.append(pad + "  ".join(parts).rstrip())
    return "\n".join(lines)
