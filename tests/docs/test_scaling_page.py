"""Tests of docs/reference/scaling.md: its commands have existing options and its manifests are valid YAML."""

from __future__ import annotations

import inspect
import re
import shlex

import pytest
import yaml

from pretune.cli import VERBS
from pretune.verbs.command_builder import make_command
from tests.support.paths import DOCS

pytestmark = pytest.mark.end_to_end

PAGE = (DOCS / "reference" / "scaling.md").read_text(encoding="utf-8")


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


def manifests() -> list[dict[str, object]]:
    return [part for block in blocks("yaml") for part in yaml.safe_load_all(block)]


def commands() -> list[list[str]]:
    """Return what follows `pretune` in every command of the page."""
    lines = [line for kind in ("sh", "bash") for b in blocks(kind) for line in b.replace("\\\n", " ").splitlines()]
    found = [shlex.split(line) for line in lines if re.search(r"\bpretune [a-z]", line)]
    job = next(part for part in manifests() if part["kind"] == "Job")
    found.append(job["spec"]["template"]["spec"]["containers"][0]["args"])  # type: ignore[index]
    return [words[words.index("pretune") + 1 :] for words in found if "pretune" in words]


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_commands_have_existing_options(words: list[str]) -> None:
    known = inspect.signature(make_command(words[0], VERBS[words[0]])).parameters
    given = [word.removeprefix("--").replace("-", "_") for word in words if word.startswith("--")]
    assert given and set(given) <= {name.rstrip("_") for name in known}


def test_page_has_commands_for_slurm_kubernetes_and_ray() -> None:
    assert len(commands()) >= 6
    assert [part["kind"] for part in manifests()] == ["Service", "Job"]
