"""Read JSON and YAML from files that may be damaged or malicious.

Size, nesting, and the number of values are limited before anything is built; parse errors name the file and the line. Schemas
are dataclasses, TypedDicts, or any other type that pydantic can validate.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pretune.runtime.atomic_io import LONGEST_NAME, write_json
from pretune.runtime.errors import PretuneError, quote, suggest

Schema = TypeVar("Schema")

LARGEST = 64 << 20  # maximum bytes of a file that is parsed whole
DEEPEST = 64  # maximum nesting of brackets
MOST_VALUES = 100_000  # in a YAML file, with its aliases expanded
CHECKSUM_KEY = "sha256"  # key of the checksum in a sealed JSON file
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|\\U0000[dD][89a-fA-F]")  # a lone surrogate, as JSON and YAML escape it
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[\[{\]}]', re.DOTALL)


def read_text(path: Path, limit: int = LARGEST) -> str:
    """Return the contents of a UTF-8 text file; raise an error if it is larger than `limit` bytes."""
    try:
        with path.open("rb") as file:
            raw = file.read(limit + 1)
    except FileNotFoundError as error:
        raise PretuneError(f"{path}: there is no such file; check the path") from error
    except OSError as error:
        raise PretuneError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error
    if len(raw) > limit:
        raise PretuneError(
            f"{path}: the file is larger than {limit / 1e6:,.0f} MB, the limit for this kind of file; check the path"
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise PretuneError(
            f"{path}, line {line}: not valid UTF-8 text; the file is damaged or binary, so check the path"
        ) from error


def read_json(path: Path, limit: int = LARGEST) -> Any:
    """Return the value in a JSON file; raise an error if the file is larger than `limit` bytes."""
    return parse_json(read_text(path, limit), str(path))


def parse_json(text: str, where: str) -> Any:
    """Parse a JSON text; `where` names its source in errors.

    >>> parse_json('{"a": [1, 2]}', "example")
    {'a': [1, 2]}
    """
    if json_depth(text) > DEEPEST:
        raise PretuneError(
            f"{where}: nested more than {DEEPEST} levels deep, so it is damaged or malicious; get it again from a source that you trust"
        )
    try:
        return _check_surrogates(json.loads(text), text, where)
    except json.JSONDecodeError as error:
        raise PretuneError(f"{where}, line {error.lineno}: not valid JSON ({error.msg}); correct this line") from error
    except ValueError as error:  # an integer of thousands of digits
        raise PretuneError(f"{where}: not valid JSON (a number has too many digits); correct this number") from error


def _check_surrogates(value: Any, text: str, where: str) -> Any:
    """Return `value`, parsed from the JSON `text`; raise an error if a string in it has a lone surrogate.

    A lone surrogate is half of a character in UTF-16, which is not valid text. Errors name `where`.
    """
    if not _SURROGATE.search(text):
        return value
    try:
        json.dumps(value, ensure_ascii=False, default=str, skipkeys=True).encode()
    except UnicodeEncodeError as error:
        broken = error.object[error.start : error.end].encode("unicode_escape").decode()
        raise PretuneError(f"{where}: a string contains {broken}, which is not a valid character; remove it") from error
    return value


def json_depth(text: str) -> int:
    """Return the nesting depth of the brackets in a JSON text.

    >>> json_depth('{"a": ["[[["]}')
    2
    """
    depth = deepest = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        if match[0] in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif match[0] in "]}":
            depth -= 1
    return deepest


def read_mapping(path: Path, what: str) -> dict[str, Any]:
    """Return the object in a JSON file as a dictionary; `what` describes the expected content in errors."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise PretuneError(
            f"{path}: not {what}; the file contains {_kind(value)} instead of a JSON object, so check the path"
        )
    return value


def read_json_lines(path: Path, *, torn: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in a file, one per line.

    With `torn`, the last line is skipped if it has no line end, as it was not completely written.
    """
    lines = read_text(path).split("\n")
    last = lines.pop()
    if last.strip() and not torn:
        lines.append(last)
    for number, line in enumerate(lines, 1):
        if line.strip():
            value = parse_json(line, f"{path}, line {number}")
            if not isinstance(value, dict):
                raise PretuneError(
                    f"{path}, line {number}: expected a JSON object, not {_kind(value)}; write one object per line"
                )
            yield value


def validate_schema(value: Any, schema: type[Schema], where: str) -> Schema:
    """Check a parsed value against a schema (a type), and return it as a value of that type.

    If the value does not match, raise an error that names `where`, its source.

    >>> validate_schema({"step": 3}, dict[str, int], "state.json")
    {'step': 3}
    """
    from pydantic import ValidationError

    try:
        adapter: Any = _adapter(schema)  # type: ignore[arg-type]
        return adapter.validate_python(value, strict=True)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"][0].lower() + problem["msg"][1:]
        place = f"{where}: {key}" if key else where
        raise PretuneError(f"{place}: {message}, not {quote(problem['input'])}{suggest_choice(problem)}") from error


def suggest_choice(problem: Mapping[str, Any]) -> str:
    """Return a hint, "; did you mean …?", if a pydantic validation error is about a misspelled choice, else "".

    >>> suggest_choice({"type": "literal_error", "input": "lineer", "ctx": {"expected": "'linear', 'cosine' or 'constant'"}})
    "; did you mean 'linear'?"
    """
    if problem["type"] != "literal_error" or not isinstance(problem["input"], str):
        return ""
    choices = re.findall(r"'([^']*)'", problem["ctx"]["expected"])
    hint = suggest(problem["input"], choices, " ")  # the message lists the choices already
    return f"; {hint}" if hint.strip() else ""


def is_file_name(name: str) -> bool:
    """Return whether a string is the name of a file, without any folder, so that it cannot lead to another folder.

    >>> is_file_name("00000.safetensors"), is_file_name("../00000.safetensors"), is_file_name("..")
    (True, False, False)
    """
    length = len(name.encode("utf-8", "surrogatepass"))
    return Path(name).name == name and name != ".." and "\0" not in name and 0 < length <= LONGEST_NAME


def as_tuples(value: Any) -> Any:
    """Return a value in which all lists, also nested ones, are converted to tuples.

    >>> as_tuples([1, [2]])
    (1, (2,))
    """
    return tuple(map(as_tuples, value)) if isinstance(value, list | tuple) else value


@cache
def _adapter(schema: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(schema)


def write_checksummed_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object to a file, with a checksum of its contents as an additional key."""
    plain = json.loads(json.dumps(value))
    write_json(path, {**plain, CHECKSUM_KEY: json_checksum(plain)})


def read_checksummed_json(path: Path, what: str) -> dict[str, Any]:
    """Read a file that `write_checksummed_json` wrote; raise an error if its contents do not match the checksum.

    `what` describes the expected content in errors.
    """
    value = read_mapping(path, what)
    if value.pop(CHECKSUM_KEY, None) != json_checksum(value):
        raise PretuneError(
            f"{path}: the contents do not match their checksum, so the file was damaged or edited; restore it from a backup, or create it again"
        )
    return value


def file_digest(path: Path) -> str:
    """Return the SHA-256 checksum of a file, in hexadecimal."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise PretuneError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error


def json_checksum(value: Any) -> str:
    """Return a checksum of a JSON value that does not depend on its formatting.

    >>> json_checksum({"a": 1, "b": 2}) == json_checksum({"b": 2, "a": 1})
    True
    """
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def parse_yaml(text: str, where: str) -> Any:
    """Parse a YAML text; unlike in standard YAML 1.1, 1e-4 is a number. `where` names the source in errors.

    >>> parse_yaml("lr: 1e-4", "example")
    {'lr': 0.0001}
    """
    import yaml

    loader = yaml_loader_and_dumper()[0]
    try:
        _check_depth(text, where)
        _check_aliases(yaml.compose(text, loader), where)
        return _check_surrogates(yaml.load(text, loader), text, where)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or error
        raise PretuneError(f"{where}{line}: not valid YAML ({problem}); correct the file") from error
    except (ValueError, OverflowError, TypeError, RecursionError) as error:  # such as an invalid date
        raise PretuneError(f"{where}: a value is not valid YAML ({error}); put the value in quotes") from error


def _check_depth(text: str, where: str) -> None:
    """Raise an error that names `where`, its source, if a YAML text is nested too deeply."""
    import yaml

    depth = 0
    for event in yaml.parse(text, yaml_loader_and_dumper()[0]):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > DEEPEST:
                raise PretuneError(
                    f"{where}: nested more than {DEEPEST} levels deep, so it is damaged or malicious; get it again from a source that you trust"
                )
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _check_aliases(node: Any, where: str) -> None:
    """Raise an error if aliases in a YAML document are circular, or expand to too many values.

    `node` is the root of the parsed document, and `where` names its source.
    """
    import yaml

    sizes: dict[int, int | None] = {}

    def size(node: Any) -> int:
        if id(node) in sizes:
            known = sizes[id(node)]
            if known is None:
                raise PretuneError(f"{where}: an alias refers to a value that contains the alias; remove the alias")
            return known
        sizes[id(node)] = None
        children = node.value if isinstance(node, yaml.SequenceNode) else []
        if isinstance(node, yaml.MappingNode):
            children = [part for pair in node.value for part in pair]
        total = 1 + sum(map(size, children))
        if total > MOST_VALUES:
            raise PretuneError(
                f"{where}: the YAML aliases expand to more than {MOST_VALUES:,} values; replace the aliases with the values themselves"
            )
        sizes[id(node)] = total
        return total

    if node is not None:
        size(node)


@cache
def yaml_loader_and_dumper() -> tuple[Any, Any]:
    """Return YAML loader and dumper classes that treat 1e-4 as a number, not as text."""
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    class Dumper(yaml.SafeDumper):  # text that looks like such a number needs quotes
        pass

    exponent = re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$")
    for kind in (Loader, Dumper):
        kind.add_implicit_resolver("tag:yaml.org,2002:float", exponent, list("-+0123456789"))
    return Loader, Dumper


def _kind(value: Any) -> str:
    """Return the type of a parsed JSON value in words, such as "a list", for error messages."""
    names = {list: "a list", str: "a string", bool: "true or false", int: "a number", float: "a number"}
    return names.get(type(value), "null")
