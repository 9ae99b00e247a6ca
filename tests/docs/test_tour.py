"""Tests of the notebook docs/tour.ipynb: its format, its committed outputs, and that all of its code runs.

After a change, execute it again: jupyter nbconvert --to notebook --execute --inplace docs/tour.ipynb
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT

NOTEBOOK = ROOT / "docs" / "tour.ipynb"
MAX_BYTES = 200_000  # of the whole file, with its outputs
# Absolute paths of files, and addresses, which differ between machines; "//" and "</td>" are not paths.
MACHINE_PATH = re.compile(
    r"(?<![\w<.:/])/(?:home|Users|root|tmp|var|work|opt|usr|private|mnt|srv)\b|[A-Z]:\\\\|localhost"
)

# What runs after the cells: the main results exist and are in range.
CHECKS = """
assert model.num_parameters > 1e7 and len(states.hidden_states) == model.config.num_hidden_layers + 1
assert set(adapted.before) == set(adapted.after) >= {"mlm"}
assert classifier.labels == ["complaint", "praise", "question", "request"]
assert run.results["dev/accuracy"] > 0.3  # of four equally frequent classes
assert abs(1 - len(wrong) / len(test) - run.results["dev/accuracy"]) < 0.02
assert vectors.shape == (200, 256) and query.shape == (256,)
assert pipeline.score(test["text"], test["label"]) > 0.3
assert list(table.index) == ["uncompressed", "int8", "layers=5", "layers=5 > int8"] and table["accuracy"].notna().all()
assert table.megabytes["layers=5 > int8"] < table.megabytes["int8"] < table.megabytes["uncompressed"] / 2
assert any(label in done.stdout for label in classifier.labels)
"""


def read_notebook() -> dict[str, Any]:
    notebook: dict[str, Any] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return notebook


def text_of(part: str | list[str]) -> str:
    """Return a text of a notebook, which is a string or a list of lines."""
    return part if isinstance(part, str) else "".join(part)


def code_cells() -> list[dict[str, Any]]:
    return [cell for cell in read_notebook()["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_is_valid() -> None:
    notebook = read_notebook()
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert notebook["metadata"]["kernelspec"] == {"display_name": "Python 3", "language": "python", "name": "python3"}
    ids = [cell["id"] for cell in notebook["cells"]]
    assert len(set(ids)) == len(ids) and all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in ids)
    for cell in notebook["cells"]:
        keys = {"cell_type", "id", "metadata", "source"}
        assert cell["cell_type"] in ("code", "markdown") and cell["metadata"] == {}
        assert set(cell) == (keys | {"execution_count", "outputs"} if cell["cell_type"] == "code" else keys)
        if cell["cell_type"] == "code":
            compile(text_of(cell["source"]), cell["id"], "exec")


def test_it_is_committed_with_small_outputs_of_one_execution() -> None:
    cells = code_cells()
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = [output["output_type"] for cell in cells for output in cell["outputs"]]
    assert set(kinds) <= {"execute_result", "display_data", "stream"}
    streams = {output["name"] for cell in cells for output in cell["outputs"] if output["output_type"] == "stream"}
    assert streams == {"stdout"}  # no warnings
    assert any("image/png" in output.get("data", {}) for cell in cells for output in cell["outputs"])
    assert NOTEBOOK.stat().st_size < MAX_BYTES


def test_outputs_have_no_paths_of_a_machine() -> None:
    for cell in code_cells():
        for output in cell["outputs"]:
            shown = [output.get("text", ""), *output.get("data", {}).values()]
            texts = [text_of(part) for part in shown if not text_of(part).startswith("iVBOR")]  # pictures
            assert not any(MACHINE_PATH.search(text) for text in texts), cell["id"]


@pytest.mark.parametrize(
    "text", ["Run('/tmp/pretune-1/run')", "/home/me", r"C:\\Users", "at /srv/x", "http://localhost"]
)
def test_paths_of_a_machine_are_found(text: str) -> None:
    assert MACHINE_PATH.search(text)


@pytest.mark.end_to_end
@pytest.mark.timeout(1200)
def test_all_cells_run(tmp_path: Path) -> None:
    for package in ("pandas", "onnxruntime"):
        pytest.importorskip(package)
    script = tmp_path / "tour.py"
    cells = (f"# cell {cell['id']}\n{text_of(cell['source'])}" for cell in code_cells())
    script.write_text("\n\n".join([*cells, CHECKS]), encoding="utf-8")
    # A process of its own, because cells change the working directory; temporary folders are below tmp_path.
    settings = {**os.environ, "TMPDIR": str(tmp_path), "MPLBACKEND": "agg"}
    result = subprocess.run([sys.executable, str(script)], cwd=tmp_path, env=settings, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-4000:]
