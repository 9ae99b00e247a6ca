"""Tests that every guide runs offline from its first to its last block, with small budgets and less data."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from pretune.evaluation import paired_bootstrap
from pretune.objectives import OBJECTIVES, registry
from pretune.sample_data import write_sample_data
from tests.support.pages import fenced_blocks, run_page, shell_lines
from tests.support.paths import DOCS

SAMPLE = "python -m pretune.sample_data data"
GUIDES = sorted(path.stem for path in (DOCS / "guides").glob("*.md"))
PAGES = {"index": DOCS / "index.md", **{name: DOCS / "guides" / f"{name}.md" for name in GUIDES}}
NEEDS = {"compress": "onnxruntime", "deploy": "onnxruntime"}
ROWS = {"train.csv": 61, "dev.csv": 25, "messages.txt": 20, "manual.txt": 1500}  # lines that the tests keep


@pytest.fixture
def less_data(tmp_path: Path) -> Path:
    """Return a folder with the first lines of the sample data."""
    folder = tmp_path / "less"
    for path in write_sample_data(folder):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(lines[: ROWS[path.name]]), encoding="utf-8")
    return folder


def smaller_budget(line: str) -> str:
    """Return a command with a budget of two steps or two seconds, or a quick comparison of strategies.

    >>> smaller_budget("pretune finetune MODEL rows.csv --epochs 3")
    'pretune finetune MODEL rows.csv --steps 2'
    >>> smaller_budget("pretune finetune MODEL rows.csv")
    'pretune finetune MODEL rows.csv --effort quick'
    """
    if line == "pip install pretune":
        return "true"
    if not line.startswith("pretune ulmfit "):
        line = re.sub(r"--(steps|epochs) \d+", "--steps 2", line)
        line = re.sub(r"--seconds \d+", "--seconds 2", line)
    if line.startswith("pretune finetune ") and not re.search(r"--(steps|seconds|epochs|strategy|effort) ", line):
        line += " --effort quick"
    return re.sub(r"--scale-to \d+steps", "--scale-to 2steps", line)


@pytest.mark.parametrize("guide", GUIDES)
def test_guide_begins_with_sample_data_and_leads_on(guide: str) -> None:
    page = DOCS / "guides" / f"{guide}.md"
    first = next(shell_lines(block)[0] for language, block in fenced_blocks(page) if language == "sh")
    assert first == SAMPLE
    assert re.search(r"^## Next\n", page.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.end_to_end
@pytest.mark.timeout(1200)  # on busy processors
@pytest.mark.usefixtures("briefly")
@pytest.mark.parametrize("guide", PAGES)
def test_guide_runs(guide: str, tmp_path: Path, less_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if guide in NEEDS and importlib.util.find_spec(NEEDS[guide]) is None:
        pytest.skip(f"{NEEDS[guide]} is not installed")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr(paired_bootstrap, "ROUNDS", 10)
    assert "mlm" in OBJECTIVES  # all built-in objectives are registered
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))  # forget what the guide registers
    run_page(
        PAGES[guide], lambda line: f"{SAMPLE} && cp {less_data}/* data" if line == SAMPLE else smaller_budget(line)
    )
