"""The wheel and the source distribution: what they contain, and that the wheel runs in an empty environment."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import tarfile
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

from pretune import __version__
from pretune.runtime.optional_imports import EXTRAS
from tests.support.paths import ROOT

pytestmark = pytest.mark.end_to_end

MAX_BYTES = 30_000_000  # most of it is the bundled model
PACKAGE = ROOT / "src" / "pretune"
EXAMPLE = """
import pretune as pt

print(pt.fill("pretune-small-en", ["Paris is the [MASK] of France."]))
"""


def build(source: Path, folder: Path, target: str) -> Path:
    """Build a distribution from a source tree and return its path; `target` is "wheel" or "sdist"."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder), "--target", target]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (file,) = folder.iterdir()
    return file


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this source tree."""
    return build(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a virtual environment with the wheel, which finds all other packages in the running environment."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    python = str(folder / "bin" / "python")
    install = ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, *install], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    # Folders named in a .pth file come last in sys.path, and .pth files in them, such as an editable install's, do nothing.
    others = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (packages / "others.pth").write_text("\n".join(others))
    return folder


def run_in(environment: Path, program: str, *arguments: str, folder: Path) -> str:
    """Run a program of a virtual environment in a folder and return its output; the source tree is not on its path."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [str(environment / "bin" / program), *arguments]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def python_example() -> str:
    """Return the first Python block of README.md if it starts from the bundled model, not from files; else `EXAMPLE`."""
    found = re.search(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    assert found is not None
    return found[1] if "pretune-small-en" in re.sub(r"#.*", "", found[1]) else EXAMPLE


def source_files() -> set[str]:
    """Return the paths of all files of the package, as they are in a wheel."""
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(PACKAGE.parent).as_posix() for path in files}


def test_wheel_contains_the_package_and_nothing_else(wheel: Path) -> None:
    names = set(ZipFile(wheel).namelist())
    size = wheel.stat().st_size
    print(f"{wheel.name}: {size / 1e6:.1f} MB, {len(names)} files")
    assert size < MAX_BYTES
    info = f"pretune-{__version__}.dist-info"
    metadata = {f"{info}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")}
    assert names == source_files() | metadata
    assert {
        "pretune/py.typed",
        "pretune/models/bundled/pretune-small-en/model.safetensors",
        "pretune/models/presets/bert-base.yaml",
        "pretune/evaluation/suites/glue.yaml",
        "pretune/sample_data/messages_train.csv",
        "pretune/serving/static/index.html",
    } <= names


def test_metadata_of_the_wheel(wheel: Path) -> None:
    text = ZipFile(wheel).read(f"pretune-{__version__}.dist-info/METADATA").decode()
    metadata = email.message_from_string(text)
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert set(metadata.get_all("Provides-Extra", [])) >= {*EXTRAS.values(), "all", "dev"}
    assert str(metadata.get_payload()).strip() == (ROOT / "README.md").read_text(encoding="utf-8").strip()


def test_source_distribution_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    archive = build(ROOT, tmp_path / "sdist", "sdist")
    with tarfile.open(archive) as files:
        files.extractall(tmp_path, filter="data")
    tree = tmp_path / archive.name.removesuffix(".tar.gz")
    for name in (
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "pyproject.toml",
        "tests/test_wheel.py",
        "docs",
        "script/test",
    ):
        assert (tree / name).exists(), name
    assert not list(tree.rglob("__pycache__"))
    again = build(tree, tmp_path / "wheel", "wheel")
    contents = [{entry.filename: entry.CRC for entry in ZipFile(file).infolist()} for file in (wheel, again)]
    assert contents[0] == contents[1]


def test_wheel_is_imported_from_the_environment(environment: Path, tmp_path: Path) -> None:
    place = run_in(environment, "python", "-c", "import pretune; print(pretune.__file__)", folder=tmp_path)
    assert Path(place.strip()).is_relative_to(environment)


def test_commands_run(environment: Path, tmp_path: Path) -> None:
    assert __version__ in run_in(environment, "pretune", "--version", folder=tmp_path)
    assert "finetune" in run_in(environment, "pretune", "--help", folder=tmp_path)


def test_example_of_the_readme_runs(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(python_example(), encoding="utf-8")
    run_in(environment, "python", "example.py", folder=tmp_path)


def test_plain_fine_tuning_and_prediction_need_no_extra(environment: Path, tmp_path: Path) -> None:
    """The packages of all extras are hidden; what is left is the core."""
    kinds = [("good", "yes"), ("bad", "no")] * 30
    rows = [f"film {number} was {word},{label}\n" for number, (word, label) in enumerate(kinds)]
    (tmp_path / "rows.csv").write_text("".join(["text,label\n", *rows]))
    script = f"""
import sys
from importlib.machinery import PathFinder

find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *rest: None if name in {sorted(EXTRAS)!r} else find(name, *rest)
from pretune.cli import main
main(sys.argv[1:])
"""
    train = ["finetune", "pretune-small-en", "rows.csv", "--out", "run", "--epochs", "1", "--num-seeds", "1"]
    run_in(environment, "python", "-c", script, *train, folder=tmp_path)
    assert "<svg" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    run_in(environment, "python", "-c", script, "predict", "run", "rows.csv", "--out", "out.csv", folder=tmp_path)
    assert len((tmp_path / "out.csv").read_text().splitlines()) == len(rows) + 1
