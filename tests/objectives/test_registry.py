"""Tests that objectives and tasks are found by name: built-in ones, and those of other packages."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from pretune.objectives import OBJECTIVES, Objective, Task, parse_objective, register_objective, task_names
from pretune.objectives.wrappers import WrappedObjective, WrappedTask
from pretune.runtime.errors import PretuneError
from tests.support.cli import run_command

PLUGIN = """
from dataclasses import dataclass
from typing import ClassVar

from pretune.objectives.pretraining.mlm import MLM


@dataclass(frozen=True)
class Half(MLM):
    name: ClassVar[str] = "half_mlm"
    rate: float = 0.5
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the entry points of a package that adds an objective."""
    folder = tmp_path / "site"
    info = folder / "half_objective-1.0.dist-info"
    info.mkdir(parents=True)
    (folder / "half_objective.py").write_text(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: half-objective\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pretune.objectives]\nhalf = half_objective:Half\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "half_objective", raising=False)
    return info / "entry_points.txt"


@pytest.mark.not_fast
def test_entry_point_adds_an_objective(plugin: Path, tmp_path: Path) -> None:
    assert "half_mlm" in OBJECTIVES and "half_mlm" not in task_names()
    corpus, tokenizer, run = tmp_path / "corpus.txt", tmp_path / "tokenizer", tmp_path / "run"
    corpus.write_text("".join(f"the {word} sat on the mat\n\n" for word in ("cat", "dog", "fox", "hen") * 4))
    run_command("tokenizer", "train", corpus, "--kind", "words", "--vocab-size", 60, "--out", tokenizer)
    options = ["--tokenizer", tokenizer, "--objective", "half_mlm", "--steps", 2, "--out", run]
    run_command("pretrain", "bert-tiny", "--data", corpus, *options, "--device", "cpu")
    assert "half_mlm" in (run / "metrics.jsonl").read_text()


def test_entry_points_that_are_not_objectives_are_rejected(plugin: Path) -> None:
    plugin.write_text("[pretune.tasks]\nhalf = half_objective:Half\n")
    with pytest.raises(
        PretuneError, match=r"'half' of the group pretune\.tasks is not a class derived from pretune\.Task"
    ):
        parse_objective("mlm")


def test_objective_names_are_unique() -> None:
    with pytest.raises(PretuneError, match="both register an objective 'mlm'"):

        @register_objective
        @dataclass(frozen=True)
        class Other(Objective):
            name: ClassVar[str] = "mlm"


@pytest.mark.parametrize(
    ("name", "why"),
    [("keys", "torch.nn.ModuleDict"), ("forward", "torch.nn.ModuleDict"), ("training", "torch.nn.ModuleDict"),
     ("my.task", "letters, digits and underscores"), ("2mlm", "a letter or an underscore first"), ("", "a letter or an underscore first")],
)  # fmt: skip
def test_names_that_no_head_can_have_are_refused(name: str, why: str, plugin: Path) -> None:
    kind = type("Odd", (Objective,), {"name": name})
    with pytest.raises(PretuneError, match=f"test_registry: {name!r} cannot be the name of an objective.*{why}"):
        register_objective(kind)
    (plugin.parent.parent / "half_objective.py").write_text(PLUGIN.replace("half_mlm", name))
    with pytest.raises(PretuneError, match=f"the entry point 'half' of the group pretune.objectives: {name!r} cannot"):
        parse_objective("mlm")


def test_a_task_cannot_be_renamed_to_what_no_head_can_be_called() -> None:
    with pytest.raises(PretuneError, match=r"objective 'keys: classify': 'keys' cannot be the name of an objective"):
        parse_objective("keys: classify")


@pytest.mark.parametrize(("wrapper", "contract"), [(WrappedObjective, Objective), (WrappedTask, Task)])
def test_wrappers_delegate_every_member_of_the_contract(wrapper: type, contract: type) -> None:
    members = {name for base in contract.__mro__[:-1] for name in vars(base) if not name.startswith("_")}
    declared = {name for name in vars(wrapper) if not name.startswith("_")}
    # has_option queries the unwrapped task.
    assert members - declared - {"has_option"} == set()


def test_an_objective_is_imported_alone_if_its_module_has_its_name() -> None:
    code = (
        "import sys; from pretune.objectives import parse_objective; parse_objective('classify'); "
        "print(*(name for name in ('classify', 'coref') if f'pretune.objectives.tasks.{name}' in sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["classify"]
