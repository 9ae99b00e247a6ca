"""Tests of jobs on a Ray cluster: the same results as locally, even if workers are lost."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pretune as pt
from pretune import PretuneError
from pretune.inference import prediction_table, teacher_labels
from pretune.objectives.tasks.classify import Classify
from pretune.runtime import ray_jobs
from pretune.text.store import builder
from pretune.text.store.store import MANIFEST
from tests.support.one_word_task import start, tune


def test_missing_ray_is_reported_with_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(PretuneError, match=r"pip install 'pretune\[cluster\]'"):
        ray_jobs.connect_ray()


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """Yield a local cluster of two workers, which can import this package and these tests.

    Ray waits 30 seconds for its own processes, which a busy machine may exceed. In this case, we try again and then skip:
    whether Ray itself starts is not tested here.
    """
    found = pytest.importorskip("ray", reason="Ray is not installed; pip install 'pretune[cluster]'")
    paths = os.pathsep.join([str(Path(pt.__file__).parents[1]), *(path for path in sys.path if path)])
    for attempt in (1, 2, 3):
        try:
            found.init(
                num_cpus=2, include_dashboard=False, logging_level="ERROR",
                runtime_env={"env_vars": {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PRETUNE_PROGRESS": "none"}},
            )  # fmt: skip
            break
        except Exception as error:  # Ray raises a bare Exception
            found.shutdown()
            if attempt == 3:
                pytest.skip(f"Ray does not start on this machine: {error}")
    found.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield found
    found.shutdown()


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    for number in range(6):
        (folder / f"{number}.txt").write_text("\n".join(english[number::12]), encoding="utf-8")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def lost_once(number: int, *rest: Any) -> Any:
    """Build a unit in a worker that is killed during the first attempt."""
    files, _, folder, _ = rest
    mark = Path(folder).parent / "lost"
    if number == 1 and not mark.exists():
        mark.touch()
        (Path(folder) / ".tmp-half").write_bytes(b"half a shard")
        os.kill(os.getpid(), signal.SIGKILL)
    return builder.build_unit(number, files, *rest[1:])


@pytest.mark.end_to_end
def test_cluster_prepares_the_same_bytes_despite_a_lost_worker(
    ray: Any, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder, "UNIT_BYTES", 10_000)  # each file is a unit, and thus a job
    tokenizer = pt.train_tokenizer([texts], kind="bpe", vocab_size=300)
    here = pt.prepare(texts, tokenizer, tmp_path / "here", processes=1)
    assert len({shard["file"].split("-")[0] for shard in here.shards}) == 6
    monkeypatch.setattr(builder, "build_unit", lost_once)  # replaced here, not in the workers
    there = pt.prepare(texts, tokenizer, tmp_path / "there", executor="ray")
    assert (tmp_path / "lost").exists()  # a worker was killed
    assert contents(here.folder) == contents(there.folder)
    # Repeat from what a killed command would have left: finished shards are kept.
    unfinished = (tmp_path / "there").rename(tmp_path / "there.partial")
    (unfinished / MANIFEST).unlink()
    kept = sorted(unfinished.glob("*.safetensors"))
    kept.pop().unlink()
    times = [path.stat().st_mtime_ns for path in kept]
    again = pt.prepare(texts, tokenizer, tmp_path / "there", executor="ray")
    assert contents(here.folder) == contents(again.folder)
    assert times == [(again.folder / path.name).stat().st_mtime_ns for path in kept]


@pytest.mark.end_to_end
def test_cluster_cleans_to_the_same_bytes(
    ray: Any, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builder, "UNIT_BYTES", 10_000)
    (tmp_path / "benchmark.txt").write_text((texts / "0.txt").read_text(encoding="utf-8")[:2000], encoding="utf-8")
    tokenizer = pt.train_tokenizer([texts], kind="bpe", vocab_size=300)
    options: dict[str, Any] = {
        "clean": ["prose", "c4-duplicates"],
        "near_duplicates": 0.5,
        "decontaminate": [str(tmp_path / "benchmark.txt")],
    }
    here = pt.prepare(texts, tokenizer, tmp_path / "here", processes=1, **options)
    there = pt.prepare(texts, tokenizer, tmp_path / "there", executor="ray", **options)
    assert contents(here.folder) == contents(there.folder)
    report = here.cleaning()
    assert report is not None and report["removed_characters"]


@pytest.mark.not_fast
def test_errors_of_a_cluster_equal_local_ones(ray: Any, texts: Path, tmp_path: Path) -> None:
    tokenizer = pt.train_tokenizer([texts], kind="bpe", vocab_size=300)
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe broken \xff" * 10)
    with pytest.raises(PretuneError, match=r"bad\.txt") as remote:
        pt.prepare(tmp_path / "bad.txt", tokenizer, tmp_path / "store", executor="ray")
    with pytest.raises(PretuneError) as here:
        pt.prepare(tmp_path / "bad.txt", tokenizer, tmp_path / "store", processes=1)
    assert str(remote.value) == str(here.value)
    assert not (tmp_path / "store").exists() and not (tmp_path / "store.partial").exists()
    with pytest.raises(PretuneError, match="does not have this path"):
        next(ray_jobs.run_on_ray(ray_jobs.check_visible, [(tmp_path / "elsewhere",)]))


@pytest.mark.end_to_end
def test_cluster_predicts_the_same_rows(ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tune(tmp_path / "run", steps=5)
    monkeypatch.setattr(prediction_table, "ROWS", 10)
    for engine in ("local", "ray"):
        pt.predict(run, start() / "train.csv", out=tmp_path / f"{engine}.jsonl", probabilities=True, executor=engine)  # type: ignore[arg-type]
    local, there = (
        [json.loads(line) for line in (tmp_path / f"{engine}.jsonl").read_text(encoding="utf-8").splitlines()]
        for engine in ("local", "ray")
    )
    assert len(there) == 64 and "probability_yes" in there[0]
    for mine, other in zip(local, there, strict=True):
        # Workers may use another number of threads, which changes the last bits of a sum on some CPUs.
        assert mine == pytest.approx(other, abs=1e-6)


@pytest.mark.not_fast
def test_teacher_on_a_cluster_gives_the_same_labels(ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tune(tmp_path / "run", steps=5)
    monkeypatch.setattr(teacher_labels, "EXCERPT_ROWS", 20)
    rows = Classify().read(start() / "train.csv", {})
    own = sorted(set(rows.labels or ()))
    local, there = (
        teacher_labels.label_with_teachers([str(run.folder)], rows, own, tmp_path / f"{engine}.npz", executor=engine)  # type: ignore[arg-type]
        for engine in ("local", "ray")
    )
    assert local.shape == (64, 2)
    np.testing.assert_allclose(local, there, atol=1e-6)
