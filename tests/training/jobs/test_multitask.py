"""Tests of multi-task fine-tuning: each task learns under its own name and is sampled as requested."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

import pretune as pt
from pretune.inference.predict import load_task_model
from pretune.models.loading import load_model
from pretune.objectives import JointObjective, Mixture, RenamedTask, parse_objective
from pretune.training import prefetch
from pretune.training.data_streams import DataStreams, TrainingStage
from pretune.training.jobs.task_sampling import parse_sampling
from pretune.verbs.shared_inputs import parse_task_files
from tests.support.cli import run_command
from tests.support.interrupted_training import stop_at
from tests.support.one_word_task import share_here
from tests.support.tiny_models import read, tiny, tune

WORDS = ["red", "water", "fire", "tree", "stone", "cloud"]


@pytest.fixture(scope="module")
def task_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with tasks, of which the first has three times as many rows and more classes than the second."""
    folder = tmp_path_factory.mktemp("tasks")
    moods = ["good", "bad", "so"]
    tasks = {
        "mood": [(f"{moods[i % 3]} {WORDS[i // 3 % 6]}", f"m{i % 3}") for i in range(72)],
        "warm": [(f"{WORDS[i % 6]} {moods[i // 6 % 3]}", "yes" if i % 6 in (0, 2) else "no") for i in range(24)],
    }
    for name, rows in tasks.items():
        (folder / f"{name}.csv").write_text("\n".join(["text,label", *map(",".join, rows)]), encoding="utf-8")
    words = {"red": ("rouge", "rot"), "water": ("eau", "wasser"), "fire": ("feu", "feuer")}
    for side, name in enumerate(("french", "german")):
        lines = [f"{word},{both[side]}" for word, both in words.items()] * 4
        (folder / f"{name}.csv").write_text("\n".join(["source,target", *lines]), encoding="utf-8")
    texts = [text for rows in tasks.values() for text, _ in rows]
    known = read([*texts, "french german : =", *(" ".join(both) for both in words.values())] * 2)
    tiny("bert-tiny", known, folder / "bert", "mlm+nsp")
    tiny("gpt2-tiny", known, folder / "gpt2")
    tiny("t5-tiny", known, folder / "t5")
    return folder


def files(folder: Path, *names: str) -> dict[str, str]:
    return {name: str(folder / f"{name}.csv") for name in names}


@pytest.fixture(scope="module")
def multitask_run(task_folder: Path) -> pt.Run:
    return tune(task_folder / "bert", files(task_folder, "mood", "warm"), task_folder / "run", "classify", steps=80)


@pytest.mark.not_fast
def test_both_tasks_are_learned(multitask_run: pt.Run) -> None:
    results = multitask_run.results
    assert results["dev/mood/accuracy"] > 0.9 and results["dev/warm/accuracy"] > 0.9
    assert results["dev/score"] == results["dev/mood/accuracy"] + results["dev/warm/accuracy"]
    assert results["rows"] == {"mood": 72, "warm": 24} and results["batches"] == {"mood": 60, "warm": 20}
    assert results["labels"] == {"mood": ["m0", "m1", "m2"], "warm": ["no", "yes"]}
    assert results["objective"] == "mood: classify|warm: classify"
    assert {"mood", "warm", "mood/accuracy"} <= set(multitask_run.metrics()[-2] | multitask_run.metrics()[-3])


@pytest.mark.not_fast
def test_predictions_are_those_of_the_given_task(multitask_run: pt.Run, task_folder: Path) -> None:
    with pytest.raises(pt.PretuneError, match="trained for several tasks, mood, warm; choose one with --task"):
        multitask_run.predict(["good fire"])
    with pytest.raises(pt.PretuneError, match="not trained for a task 'mod'; did you mean 'mood'"):
        multitask_run.predict(["good fire"], task="mod")
    for name in ("mood", "warm"):
        rows = pt.predict(multitask_run, task_folder / f"{name}.csv", text="text", task=name)
        lines = (task_folder / f"{name}.csv").read_text().splitlines()[1:]
        right = np.mean([row["label"] == line.split(",")[1] for row, line in zip(rows, lines, strict=True)])
        assert right == multitask_run.results[f"dev/{name}/accuracy"]
    heads = load_file(multitask_run.folder / "head.safetensors")
    assert {name.split(".")[1] for name in heads} == {"mood", "warm"}
    assert heads["heads.mood.output.weight"].shape[0] == 3


def test_named_heads_are_initialized_from_the_model(task_folder: Path) -> None:
    """Both tasks start with BERT's pooler."""
    model = load_model(
        task_folder / "bert",
        parse_objective("mood: classify|warm: classify", {"mood": {"labels": "abc"}, "warm": {"labels": "yn"}}),
    )
    pooler = load_file(task_folder / "bert" / "model.safetensors")["bert.pooler.dense.weight"]
    for name in ("mood", "warm"):
        assert torch.equal(model.root.heads[name].pooler.dense.weight, pooler)
    assert model.root.heads["mood"].output.weight.shape[0] == 3
    assert not any("pooler" in name for name in model.untrained)


def test_classification_head_of_an_encoder_decoder_can_be_named(task_folder: Path, tmp_path: Path) -> None:
    run = tune(task_folder / "t5", files(task_folder, "mood", "warm"), tmp_path / "run", "classify", steps=2)
    assert not load_task_model(run.folder, name="warm")[0].untrained


@pytest.mark.end_to_end
@pytest.mark.parametrize("model", ["gpt2", "t5"])
def test_text_to_text_tasks_share_everything_but_their_prefixes(model: str, task_folder: Path, tmp_path: Path) -> None:
    objective = (
        'french: generate(prefix="french:",max_new_tokens=8) | german: generate(prefix="german:",max_new_tokens=8)'
    )
    run = tune(task_folder / model, files(task_folder, "french", "german"), tmp_path / "run", objective, steps=100)
    assert run.results["dev/score"] == 2.0
    assert run.predict(["red"], task="french") == [{"answer": "rouge"}]
    assert run.predict(["red"], task="german") == [{"answer": "rot"}]
    trained, _ = load_task_model(run.folder, name="french")
    assert trained.root.heads["french"] is trained.root.heads["german"] is trained.root.heads["lm"]
    assert not (run.folder / "head.safetensors").exists()


def test_tasks_of_different_kinds_can_be_combined(task_folder: Path, tmp_path: Path) -> None:
    objective = 'mood: classify+0.1*mlm | warm: prompt(template="so [MASK]",verbalizer=no:water/yes:fire)'
    run = tune(
        task_folder / "bert",
        files(task_folder, "mood", "warm"),
        tmp_path / "run",
        objective,
        steps=6,
        task_sampling="uniform",
    )
    assert run.results["batches"] == {"mood": 3, "warm": 3} and "mlm" in run.results
    assert run.predict(["red"], task="warm")[0]["label"] in ("yes", "no")


@pytest.mark.not_fast
def test_fitted_values_are_stored_per_task(task_folder: Path, tmp_path: Path) -> None:
    """Two regression heads have different scales, and the question-answering task has its threshold."""
    made = {}
    for name, scale in (("small", 1.0), ("large", 1000.0)):
        made[name] = str(tmp_path / f"{name}.csv")
        lines = [f"{word},{scale * number}" for number, word in enumerate(WORDS)]
        Path(made[name]).write_text("\n".join(["text,label", *lines]), encoding="utf-8")
    asked = [
        {"question": "red", "passage": "red fire", "answers": ["fire"]},
        {"question": "so", "passage": "red", "answers": []},
    ]
    made["who"] = str(tmp_path / "who.jsonl")
    Path(made["who"]).write_text("\n".join(map(json.dumps, asked)), encoding="utf-8")
    objective = "small: regress | large: regress on mix | who: answer"
    run = tune(task_folder / "bert", made, tmp_path / "run", objective, steps=6, task_sampling="uniform", report=True)
    assert {"dev/small/spearman", "dev/large/pearson", "dev/who/f1"} <= set(run.results)
    page = (run.folder / "report.html").read_text(encoding="utf-8")
    assert all(f"{name}: scores" in page for name in made) and "always no answer" in page and "always 2.5" in page
    values = {name: [answer["value"] for answer in run.predict(WORDS, task=name)] for name in ("small", "large")}
    assert np.mean(values["small"]) == pytest.approx(2.5, abs=2)
    assert np.mean(values["large"]) == pytest.approx(2500, abs=2000)
    answers = [json.loads(line) for line in (run.folder / "dev_answers-large.jsonl").read_text().splitlines()]
    assert values["large"] == pytest.approx([answer["value"] for answer in answers], rel=1e-4)
    trained, task = load_task_model(run.folder, name="who")
    assert trained.tasks["who"]["threshold"] == task.unwrapped.threshold and "threshold" not in trained.tasks["small"]
    again = tune(run.folder, made, tmp_path / "again", objective, steps=1, optimizer=pt.Optimizer(lr=1e-9))
    for name in ("small", "large"):  # training resumes from the same heads
        measured = f"dev/{name}/mse"
        assert again.results[measured] == pytest.approx(run.results[measured], rel=1e-3)


def test_single_named_task_equals_the_unnamed_task(task_folder: Path, tmp_path: Path) -> None:
    """The weights are bit-identical."""
    named = tune(task_folder / "bert", files(task_folder, "warm"), tmp_path / "named", "classify", steps=4)
    alone = tune(task_folder / "bert", task_folder / "warm.csv", tmp_path / "alone", "classify", steps=4)
    assert named.results["dev/warm/accuracy"] == alone.results["dev/accuracy"]
    one, other = (load_file(run.folder / "model.safetensors") for run in (named, alone))
    assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())
    assert named.predict(["red"]) == alone.predict(["red"])


@pytest.mark.not_fast
def test_seeds_on_several_devices_give_the_same_results(
    task_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = share_here(monkeypatch)
    here, there = (
        tune(
            task_folder / "bert",
            files(task_folder, "mood", "warm"),
            tmp_path / str(n),
            "classify",
            steps=2,
            num_seeds=2,
            devices=n,
        )
        for n in (1, 2)
    )
    assert shared == [2] and here.results["seeds"] == there.results["seeds"]


@pytest.mark.not_fast
def test_command_line_takes_named_files(task_folder: Path, tmp_path: Path) -> None:
    arguments = [f"{name}={file}" for name, file in files(task_folder, "mood", "warm").items()]
    results = run_command(
        "finetune", task_folder / "bert", *arguments, "--dev", arguments[1], "--steps", 2, "--task-sampling", "annealed",
        "--num-seeds", 2, "--out", tmp_path / "run", "--strategy", "full+freelb(2)", "--json",
    ).json()  # fmt: skip
    taken = json.loads((tmp_path / "run" / "split.json").read_text())  # of the larger one, some are to judge by
    assert results["rows"] == {"mood": 72 - len(taken["mood"]["dev_rows"]), "warm": 24} and "warm" not in taken
    assert results["seeds"]["count"] == 2 and len(results["seeds"]["scores"]) == 2
    assert results["dev/score"] == results["dev/warm/accuracy"] + results["dev/mood/accuracy"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "mood: scores" in page and "warm: scores" in page
    again = pt.Run(tmp_path / "run").recipe
    assert again["train"] == files(task_folder, "mood", "warm") and again["task_sampling"] == "annealed"
    run_command(
        "finetune", "--recipe", tmp_path / "run" / "recipe.yaml", "--out", tmp_path / "again", "--set", "report=false", "--json",
    )  # fmt: skip
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("run", "again"))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


@pytest.mark.not_fast
def test_resumed_run_is_bit_identical(task_folder: Path, tmp_path: Path) -> None:
    def one(name: str, **options: Any) -> pt.Run:
        return tune(
            task_folder / "bert", files(task_folder, "mood", "warm"), tmp_path / name, "classify", steps=10,
            task_sampling="annealed", monitor=pt.Monitoring(save_every=3), **options,
        )  # fmt: skip

    whole = one("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefetch, "deal", stop_at(prefetch.deal, 7))
        with pytest.raises(InterruptedError):
            one("cut")
    again = one("cut", resume=True)
    assert all(again.results[name] == whole.results[name] for name in ("batches", "dev/score", "step"))
    first, second = (load_file(run.folder / "model.safetensors") for run in (whole, again))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


@pytest.mark.not_fast
def test_shots_are_sampled_per_task(task_folder: Path, tmp_path: Path) -> None:
    run = tune(task_folder / "bert", files(task_folder, "mood", "warm"), tmp_path / "run", "classify", steps=2, shots=3)
    assert run.results["rows"] == {"mood": 9, "warm": 6}
    texts = tune(task_folder / "t5", task_folder / "french.csv", tmp_path / "texts", "generate", steps=2, shots=3)
    assert texts.results["rows"] == 3  # free-text answers have no classes: the number is the total


# -- sampling -------------------------------------------------------------------------------------------------------


class Counted:
    """A stream that only counts."""

    taken = 0

    def next(self) -> tuple[int, int]:
        self.taken += 1
        return 0, 0


def sampled_steps(sampling: str, sizes: list[int], steps: int, weights: list[float] | None = None) -> list[int]:
    """Return the number of steps of each task."""
    weights = weights or [1.0] * len(sizes)
    mixture = Mixture(tuple((weight, JointObjective(())) for weight in weights))
    how, streams = parse_sampling(sampling), [Counted() for _ in sizes]
    shared = DataStreams(
        mixture,
        streams,
        [TrainingStage(1.0, 0, 1)],
        shares=lambda t: how.until(sizes, weights, t).tolist(),  # type: ignore[arg-type]
    )
    for step in range(steps):
        shared.next_step(step / steps)
    return [stream.taken for stream in streams]


@pytest.mark.not_fast
@settings(max_examples=40)
@given(
    st.lists(st.integers(1, 5000), min_size=2, max_size=5),
    st.sampled_from(["proportional", "uniform", "temperature(2)", "temperature(5)", "annealed", "annealed(0.5)"]),
)
def test_sampling_proportions_are_as_requested(sizes: list[int], sampling: str) -> None:
    steps = 60
    found = np.array(sampled_steps(sampling, sizes, steps))
    powers = {"proportional": 1, "uniform": 0, "temperature(2)": 1 / 2, "temperature(5)": 1 / 5}
    last = {"annealed": 0.2, "annealed(0.5)": 0.5}.get(sampling)
    times = [powers[sampling]] if last is None else [1 - (1 - last) * (k + 0.5) / steps for k in range(steps)]
    expected = steps * np.mean([np.array(sizes) ** power / (np.array(sizes) ** power).sum() for power in times], axis=0)
    assert found.sum() == steps
    assert np.abs(found - expected).max() <= 2  # rounding


def test_annealed_sampling_moves_from_proportional_to_uniform() -> None:
    """Stickland and Murray (2019), section 3.4: the exponent is 1 at first and 0.2 in the end."""
    how, sizes, even = parse_sampling("annealed"), [9000, 1000], [1.0, 1.0]
    assert how.shares(sizes, even, 0.0).tolist() == parse_sampling("proportional").shares(sizes, even).tolist()
    assert how.shares(sizes, even, 1.0) == pytest.approx(parse_sampling("temperature(5)").shares(sizes, even))
    small = [how.shares(sizes, even, t)[1] for t in (0.0, 0.3, 0.6, 1.0)]
    assert small == sorted(small) and small[0] == pytest.approx(0.1)


def test_weights_multiply_the_sampling_proportions() -> None:
    assert sampled_steps("uniform", [10, 10000], 40, [3.0, 1.0]) == [30, 10]
    assert sampled_steps("proportional", [100, 300], 40, [3.0, 1.0]) == [20, 20]


# -- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objective", "names", "message"),
    [
        ("a: classify | b: classify", ["mood", "warm"], "--train mood=…: no task has this name"),
        ("mood: classify | warm: classify", ["mood"], "no file for the task warm; give warm=FILE"),
        ("mood: classify | classify", ["mood", "warm"], "each of several tasks needs a name"),
        ("mood: classify | mood: classify", ["mood"], "two tasks have the same name"),
        ("classify | lm", ["mood", "warm"], "name each task after its file"),
        ("mood: lm", ["mood"], "only tasks can be renamed, and lm is not a task"),
        ("mlm: classify", ["mood"], "mlm is already the name of an objective"),
    ],
)
def test_task_names_must_match_the_files(
    objective: str, names: list[str], message: str, task_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(pt.PretuneError, match=message):
        tune(task_folder / "bert", files(task_folder, *names), tmp_path / "run", objective)
    assert not (tmp_path / "run").exists()


def test_invalid_files_and_sampling_are_rejected(task_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(
        pt.PretuneError, match=r"b\.csv: several files need the names of their tasks; write NAME=FILE, as in sst=b\.csv"
    ):
        parse_task_files(["a=a.csv", "b.csv"])
    with pytest.raises(pt.PretuneError, match="one task has two files"):
        parse_task_files(["a=a.csv", "a=b.csv"])
    assert parse_task_files("plain.csv") == parse_task_files(["plain.csv"]) == "plain.csv"
    for text, message in {
        "propotional": "did you mean 'proportional'",
        "uniform(2)": "uniform takes no number",
        "temperature(0)": "the temperature must be above 0",
    }.items():
        with pytest.raises(pt.PretuneError, match=message):
            parse_sampling(text)
    named = files(task_folder, "mood", "warm")
    with pytest.raises(pt.PretuneError, match=r"--dev names tasks \(mood, warm\) but --train does not"):
        tune(task_folder / "bert", task_folder / "warm.csv", tmp_path / "run", "classify", dev=named)
    with pytest.raises(pt.PretuneError, match="--unlabeled applies only to one task"):
        tune(task_folder / "bert", named, tmp_path / "run", "classify", unlabeled="x.csv")
    with pytest.raises(pt.PretuneError, match=r"name the task of this file, as in mood=.*warm\.csv"):
        tune(task_folder / "bert", named, tmp_path / "run", "classify", dev=task_folder / "warm.csv")


def test_named_objectives_are_parsed_with_weights_and_layers() -> None:
    mixture = parse_objective(
        "a: 0.5*classify(pooling=mean) on mix + 0.1*lm | b: generate(prefix=x: y)", {"a": {"labels": "pq"}}
    )
    first: Any = mixture.objectives[0]
    assert (
        isinstance(first, RenamedTask) and first.name == "a" and first.kind == "classify" and first.labels == ("p", "q")
    )
    assert [part.name for part in mixture.objectives] == ["a", "lm", "b"]
    second: Any = mixture.objectives[2]
    assert second.unwrapped.prefix == "x: y" and second.shared_head == "lm"
