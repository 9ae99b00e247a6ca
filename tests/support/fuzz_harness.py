"""Damage files in many ways, read each, and count what happens.

A `Kind` is a kind of file that pretune reads: how to make a good one, how to read it, and, where damage must never go unnoticed,
a digest of what was read. `attack` reads mutated copies and returns a `Report` of the outcomes:

    refused    a PretuneError of one line
    accepted   read without an error; if the kind has a digest, with the same contents as the undamaged file
    changed    accepted with other contents: damage went unnoticed
    traceback  any other exception, panics of Rust libraries among them
    hung       not finished after `SECONDS` of processor time

Mutations follow from a seed, so that a case can be repeated by its number.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from pretune import PretuneError

SECONDS = 20.0  # of processor time, so that a busy machine does not matter
MEMORY = 6 << 30  # bytes of address space that a case may use in addition to those of the process
FEW, MANY = 500, 20_000  # cases per kind: in every run of the suite, and with `-m slow`
ODD_NUMBERS: Sequence[Any] = (0, -1, 1, 2**31, 2**63, 10**30, 0.5, -0.5, 1e308, 1e-320, float("nan"), float("inf"))
ODD_VALUES: Sequence[Any] = (
    None,
    True,
    False,
    "",
    "x",
    "../../etc/passwd",
    "\ud800",
    "é" * 300,
    [],
    {},
    [[]],
    [None],
    {"": ""},
)

ODD_SCALARS = (
    *("0b_", "0x", "0o9", "1e400", "-.inf", ".nan", "2001-99-99", "2001-01-01 99:99:99", "1:60:99", "~", "*a", "&a [*a]", "!!int x"),
    *("!!python/object/apply:os.system [x]", "!!binary ab=", "!!set {1, 2}", "? x", "- 1", "[", "{1: 2, null: 3}", "'", '"\\x', "| x", "%"),
    "&a [" + "1," * 9 + "1]\nb: &b [" + "*a," * 9 + "*a]\nc: &c [" + "*b," * 9 + "*b]\nd: [" + "*c," * 50 + "*c]\ne: [" + "*c," * 99 + "*c]",
)  # fmt: skip


class Hung(BaseException):
    """Raised by the alarm of a case that takes too long; not an Exception, so that nothing catches it by accident."""


@dataclass(frozen=True)
class Kind:
    """A kind of file: how it is made, which files of it are damaged, and how it is read."""

    name: str
    make: Callable[[Path], Any]  # writes good files into a folder
    files: Sequence[str]  # the names of those that are damaged, one per case
    read: Callable[[Path], Any]  # reads the folder; what it returns is ignored, unless there is a digest
    digest: Callable[[Any], Any] | None = None  # of the contents, if damage must not go unnoticed


@dataclass
class Report:
    """The number of cases of a kind by outcome, and the bad cases."""

    kind: str
    counts: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.kind}: {dict(self.counts)}" + "".join(f"\n{line}" for line in self.bad[:10])


def attack(kind: Kind, folder: Path, cases: int, seed: int = 0, only: Sequence[int] | None = None) -> Report:
    """Read `cases` damaged copies of a kind of file. `only` repeats some of them."""
    good, copy = folder / "good", folder / "copy"
    good.mkdir(parents=True)
    kind.make(good)
    expected = kind.digest(kind.read(good)) if kind.digest is not None else kind.read(good) and None
    report = Report(kind.name)
    for case in range(cases) if only is None else only:
        rng = random.Random(f"{kind.name} {seed} {case}")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(good, copy)
        target = copy / rng.choice(list(kind.files))
        before = target.read_bytes()
        damaged, how = mutate(before, rng, target.suffix)
        target.write_bytes(damaged)
        outcome, detail = run(kind, copy, expected, same=damaged == before)
        report.counts[outcome] += 1
        if outcome in ("changed", "traceback", "hung"):
            report.bad.append(f"case {case} ({target.name}, {how}): {outcome}: {detail}")
    return report


def run(kind: Kind, folder: Path, expected: Any, same: bool) -> tuple[str, str]:
    """Read a folder once, and return the outcome and its details."""
    try:
        with limits():
            found = kind.read(folder)
            if kind.digest is not None and not same and kind.digest(found) != expected:
                return "changed", "other contents than those of the undamaged file"
            return "accepted", ""
    except PretuneError as error:
        message = str(error)
        fine = "\n" not in message and 0 < len(message) <= 1300
        return ("refused", "") if fine else ("traceback", f"a message of {len(message)} characters")
    except Hung:
        return "hung", ""
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)
        ours = next((frame for frame in reversed(place) if "/pretune/" in frame.filename), place[-1])
        return "traceback", f"{type(error).__name__}: {str(error)[:200]} at {Path(ours.filename).name}:{ours.lineno}"


@contextmanager
def limits() -> Iterator[None]:
    """Limit the processor time and memory of a case."""

    def alarm(number: int, frame: FrameType | None) -> None:
        raise Hung

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    previous = signal.signal(signal.SIGVTALRM, alarm)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)


# -- damage ---------------------------------------------------------------------------------------------------------


def mutate(content: bytes, rng: random.Random, suffix: str) -> tuple[bytes, str]:
    """Return damaged content and a description of the damage; half of the time, JSON and YAML are damaged by value."""
    by_value = {".json": mutate_json, ".jsonl": mutate_json_line, ".yaml": mutate_yaml}.get(suffix)
    if by_value is not None and rng.random() < 0.6:
        try:
            return by_value(content, rng)
        except (ValueError, RecursionError):
            pass
    how = rng.choice([flip, cut, blank, drop, repeat, shuffle, insert, replace_all])
    return how(content, rng), how.__name__


def flip(content: bytes, rng: random.Random) -> bytes:
    """Flip one bit."""
    if not content:
        return b"\x01"
    place = rng.randrange(len(content))
    return content[:place] + bytes([content[place] ^ (1 << rng.randrange(8))]) + content[place + 1 :]


def cut(content: bytes, rng: random.Random) -> bytes:
    """Cut off the end."""
    return content[: rng.randrange(len(content) + 1)]


def blank(content: bytes, rng: random.Random) -> bytes:
    """Overwrite a block with zeros, ones or noise, as a broken disk does."""
    first, last = sorted((rng.randrange(len(content) + 1), rng.randrange(len(content) + 1)))
    last = min(last, first + 4096)
    fill = rng.choice([b"\0", b"\xff", b"\x7f", None])
    block = rng.randbytes(last - first) if fill is None else fill * (last - first)
    return content[:first] + block + content[last:]


def drop(content: bytes, rng: random.Random) -> bytes:
    """Leave out some bytes in the middle."""
    first = rng.randrange(len(content) + 1)
    return content[:first] + content[first + rng.randrange(1, 64) :]


def repeat(content: bytes, rng: random.Random) -> bytes:
    """Write a part twice."""
    first = rng.randrange(len(content) + 1)
    last = min(len(content), first + rng.randrange(1, 4096))
    return content[:last] + content[first:]


def shuffle(content: bytes, rng: random.Random) -> bytes:
    """Exchange two lines."""
    lines = content.split(b"\n")
    first, last = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[first], lines[last] = lines[last], lines[first]
    return b"\n".join(lines)


def insert(content: bytes, rng: random.Random) -> bytes:
    """Insert bytes that are odd in text: invalid UTF-8, a byte-order mark, control characters, unclosed brackets."""
    odd = [
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\0",
        b"\x1b[31m",
        b"[" * 100_000,
        b"{" * 3000,
        "\u202e".encode(),
        b"\r\n",
        b"9" * 5000,
    ]
    place = rng.randrange(len(content) + 1)
    return content[:place] + rng.choice(odd) + content[place:]


def replace_all(content: bytes, rng: random.Random) -> bytes:
    """Replace the whole file."""
    lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
    return rng.choice([b"", b"null", b"[]", b"{}", b"\xff" * 100, lfs, b"<!DOCTYPE html>", rng.randbytes(300)])


def mutate_json(content: bytes, rng: random.Random) -> tuple[bytes, str]:
    """Replace, remove or add one value anywhere in a JSON document."""
    document = json.loads(content)
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in list(entries)[:200]:
            places.append((value, key))
            walk(inner)

    walk(document)
    if not places:
        raise ValueError("nothing to change")
    holder, key = rng.choice(places)
    match rng.randrange(4):
        case 0:
            del holder[key]
            how = f"removed {key!r}"
        case 1:
            value = rng.choice([*ODD_NUMBERS, *ODD_VALUES])
            holder[key] = value
            how = f"{key!r} = {value!r:.40}"
        case 2 if isinstance(holder[key], int | float):
            holder[key] = rng.choice(
                [holder[key] + 1, -holder[key], holder[key] * 1000, str(holder[key]), [holder[key]]]
            )
            how = f"{key!r} = {holder[key]!r:.40}"
        case _:
            other, place = rng.choice(places)
            holder[key] = json.loads(json.dumps(other[place]))
            how = f"{key!r} = the value of {place!r}"
    return json.dumps(document, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass"), how


def mutate_json_line(content: bytes, rng: random.Random) -> tuple[bytes, str]:
    """Replace, remove or add one value in one line of a file of JSON lines."""
    lines = content.split(b"\n")
    number = rng.randrange(len(lines))
    lines[number], how = mutate_json(lines[number], rng)
    return b"\n".join(lines), f"line {number + 1}: {how}"


def mutate_yaml(content: bytes, rng: random.Random) -> tuple[bytes, str]:
    """Replace one value anywhere in a YAML document, or one scalar by one that only YAML has."""
    if rng.random() < 0.5:
        document = json.dumps(yaml.safe_load(content)).encode()
        return mutate_json(document, rng)  # JSON is YAML
    lines = content.split(b"\n")
    number = rng.choice([i for i, line in enumerate(lines) if b":" in line] or [0])
    key, _, _ = lines[number].partition(b":")
    scalar = rng.choice(ODD_SCALARS)
    lines[number] = key + b": " + scalar.encode()
    return b"\n".join(lines), f"{key.decode(errors='replace')} = {scalar:.40}"
