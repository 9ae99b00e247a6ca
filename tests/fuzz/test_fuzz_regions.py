"""Damaged files of image regions."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pretune.text.corpus.region_files import RegionFiles
from tests.support.drawn_shapes import draw, tsv_line, write_npy
from tests.support.fuzz_harness import FEW, MANY, Kind, attack


def as_tsv(folder: Path) -> None:
    lines = (tsv_line(name, draw(random.Random(int(name)))) for name in ("1", "2", "3"))
    (folder / "regions.tsv").write_bytes(b"".join(lines))


def as_npy(folder: Path) -> None:
    write_npy(folder / "1.npy", draw(random.Random(0)))


def read_tsv(folder: Path) -> None:
    files = RegionFiles()
    for name in ("1", "2", "3"):
        files.read(f"{folder}/regions.tsv#{name}")


def read_npy(folder: Path) -> None:
    RegionFiles().read(f"{folder}/1.npy")


KINDS = [
    Kind("regions in .tsv", as_tsv, ["regions.tsv"], read_tsv),
    Kind("regions in .npy", as_npy, ["1.npy", "1.boxes.npy", "1.classes.npy"], read_npy),
]


@pytest.mark.end_to_end
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_damaged_regions(kind: Kind, tmp_path: Path) -> None:
    report = attack(kind, tmp_path, FEW)
    assert not report.bad, str(report)
    assert report.counts["refused"] > FEW // 10


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_damaged_regions_at_length(kind: Kind, tmp_path: Path) -> None:
    report = attack(kind, tmp_path, MANY, seed=1)
    print(report)
    assert not report.bad, str(report)
