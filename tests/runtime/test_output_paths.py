"""Tests that every verb that writes checks `--out` before it reads anything."""

from __future__ import annotations

import errno
import inspect
from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune import PretuneError
from pretune.cli import VERBS
from pretune.runtime.output_paths import (
    INTERMEDIATE,
    METRICS,
    RECIPE,
    RESULTS,
    check_new_folder,
    check_resumable_folder,
    prepare_output,
)
from pretune.runtime.parsing import write_checksummed_json
from tests.support.cli import run_command
from tests.support.one_word_task import start

WRITING = [name for name, function in VERBS.items() if "out" in inspect.signature(function).parameters]
FILES = ("histories", "phrases", "label", "predict", "ask", "embed", "translate", "recommend")
FOLDERS = [name for name in WRITING if name not in FILES]


def call(name: str, out: Path, **more: Any) -> None:
    """Call a verb with inputs that do not exist: reading them would give another message."""
    parameters = inspect.signature(VERBS[name]).parameters.values()
    needed = {p.name: "nowhere" for p in parameters if p.default is inspect.Parameter.empty}
    VERBS[name](**{**needed, "out": out, **more})


@pytest.mark.parametrize("name", WRITING)
def test_paths_that_cannot_be_created_are_rejected_first(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("something")
    for out, words in (
        (tmp_path / "file" / "inside", "Not a directory"),
        (tmp_path / ("long" * 100), "File name too long"),
        (tmp_path / "new" / ("long" * 100), "File name too long"),
    ):
        with pytest.raises(PretuneError, match=rf"cannot be written \({words}\); choose another --out$"):
            call(name, out)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("name", WRITING)
def test_paths_that_cannot_be_written_are_rejected_first(
    name: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def touch(path: Path, *_: Any, **__: Any) -> None:
        raise OSError(code, "the disk says no", str(path))

    monkeypatch.setattr(Path, "touch", touch)
    with pytest.raises(PretuneError, match=r"x: cannot be written \(the disk says no\); choose another --out$"):
        call(name, tmp_path / "new" / "x")
    assert not list(tmp_path.iterdir())


def write_and_fail(folder: Path, names: list[str], error: type[BaseException]) -> None:
    """Write files to a folder, and raise an error."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("something")
    raise error("the block fails")


@pytest.mark.parametrize("error", [PretuneError, ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("existed", [False, True])
def test_a_new_folder_is_new_again_after_an_error(error: type[BaseException], existed: bool, tmp_path: Path) -> None:
    out = tmp_path / "out"
    if existed:
        out.mkdir()
    for _ in range(2):  # the second attempt is not refused
        with pytest.raises(error), prepare_output(out, check_new_folder, None):
            write_and_fail(out, [RECIPE, "subfolder/weights"], error)
        assert out.is_dir() == existed and not list(tmp_path.glob("out/*"))
    with pytest.raises(error), prepare_output(out, check_new_folder, None):
        write_and_fail(out, [RECIPE, f"{INTERMEDIATE}/weights"], error)
    assert [path.name for path in out.iterdir()] == [INTERMEDIATE]  # which a later attempt deletes
    with pytest.raises(error), prepare_output(out, check_new_folder, None):
        write_and_fail(out, [RECIPE, f"{INTERMEDIATE}/qat/{METRICS}"], error)
    assert [path.name for path in out.iterdir()] == [INTERMEDIATE]
    with prepare_output(out, check_new_folder, None):
        (out / RECIPE).write_text("something")
    assert (out / RECIPE).is_file()


@pytest.mark.parametrize("folder", ["", "candidates/layers2/"])
def test_a_model_that_was_trained_before_an_error_is_kept(folder: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ValueError, match="fails"), prepare_output(out, check_new_folder, None):
        write_and_fail(out, [RECIPE, f"{folder}{METRICS}"], ValueError)
    assert (out / RECIPE).is_file() and (out / f"{folder}{METRICS}").is_file()


def test_folders_that_can_be_resumed_are_kept_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), prepare_output(tmp_path, check_resumable_folder(RECIPE, "a run"), None):
        write_and_fail(tmp_path, [RECIPE], KeyboardInterrupt)
    assert (tmp_path / RECIPE).is_file()


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_with_other_contents_are_rejected_first(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("something")
    with pytest.raises(PretuneError, match="file is a file, but must be a folder; choose another --out"):
        call(name, tmp_path / "file")
    if name == "tokenizer train":  # a tokenizer may be saved next to other files
        return
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").write_text("years of work")
    with pytest.raises(PretuneError, match=r"folder exists and is not .*; choose another --out"):
        call(name, tmp_path / "folder")
    assert (tmp_path / "folder" / "thesis.tex").read_text() == "years of work"


@pytest.mark.parametrize("name", FILES)
def test_folder_in_place_of_a_file_is_rejected_first(name: str, tmp_path: Path) -> None:
    with pytest.raises(PretuneError, match=" is a folder, but must be a file; give the name of a file"):
        call(name, tmp_path)


def test_plot_is_checked_as_an_output(tmp_path: Path) -> None:
    with pytest.raises(PretuneError, match=" is a folder, but must be a file; give the name of a file"):
        pt.translate("nowhere", ["a"], plot=tmp_path)


# A quickstart and a pretraining create their folder before they load the model.
@pytest.mark.parametrize("name", [name for name in WRITING if name not in ("quickstart", "pretrain")])
def test_valid_path_is_left_unchanged(name: str, tmp_path: Path) -> None:
    with pytest.raises(PretuneError) as refused:
        call(name, tmp_path / "deep" / "new.csv", **({"suite": "glue"} if name == "evaluate" else {}))
    assert "--out" not in str(refused.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["pretrain", "adapt", "finetune"])
def test_existing_run_is_resumed_or_rejected_first(name: str, tmp_path: Path) -> None:
    (tmp_path / RECIPE).write_text("model: another\n")
    with pytest.raises(PretuneError, match="already contains a run; resume it with --resume"):
        call(name, tmp_path)
    other = {"model": start() / "start", "resume": True}
    with pytest.raises(PretuneError, match=r"this run was started with other settings \(.*model.*\)"):
        call(name, tmp_path, **other)
    (tmp_path / RESULTS).write_text("{}")
    with pytest.raises(PretuneError, match="run in this folder is already finished"):
        call(name, tmp_path, **other)


def test_search_and_evaluation_with_other_settings_are_rejected_first(tmp_path: Path) -> None:
    (tmp_path / RECIPE).write_text("model: another\n")
    with pytest.raises(PretuneError, match="this run was started with other settings"):
        call("tune", tmp_path, model=start() / "start", num_trials=1)
    write_checksummed_json(tmp_path / "suite.json", {"model": "another"})
    with pytest.raises(PretuneError, match=r"contains an evaluation with other settings \(model"):
        pt.evaluate("nowhere", data=start(), suite="glue", out=tmp_path)


def test_intermediate_results_of_an_earlier_attempt_are_accepted(tmp_path: Path) -> None:
    (tmp_path / INTERMEDIATE).mkdir()
    for name in ("distill", "prune", "quantize", "compress", "finetune"):
        with pytest.raises(PretuneError) as refused:
            call(name, tmp_path)
        assert str(tmp_path) not in str(refused.value)


def test_command_line_gives_a_one_line_error(tmp_path: Path) -> None:
    refused = run_command("export", "nowhere", "--out", tmp_path / ("long" * 100), check=False)
    error = refused.stderr
    assert refused.returncode == 1
    assert error.startswith("error: ") and len(error.splitlines()) == 1 and "File name too long" in error
