"""Tests of the verbs end to end: pretrain, finetune, predict, fill, embed, show, in Python and on the command line."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

import pretune as pt
from pretune.models.loading import load
from pretune.training.run_folder import Run
from pretune.verbs.quickstart import MARKER
from tests.support.cli import COMMAND, run_process
from tests.support.cli import run_command as run
from tests.support.tiny_models import small_tokenizer

SMALL = ["--set", "batch.tokens=256", "--set", "batch.max_length=64"]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory, english: list[str]) -> Path:
    path = tmp_path_factory.mktemp("text") / "manual.txt"
    path.write_text("\n\n".join(" ".join(part.split()) for part in english), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Run:
    """Pretrain a tiny model as in the README."""
    folder = tmp_path_factory.mktemp("runs")
    tokenizer = pt.train_tokenizer(text, kind="wordpiece", vocab_size=1000, lowercase=True)
    store = pt.prepare(text, tokenizer, out=folder / "store", processes=1)
    return pt.pretrain(
        "bert-tiny",
        store,
        objective="mlm+nsp",
        budget=pt.Budget(steps=60),
        batch=pt.Batching(tokens=1024, max_length=64),
        monitor=pt.Monitoring(eval_every=30),
        out=folder / "mine",
    )


@pytest.fixture(scope="module")
def labeled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write labeled examples that are easy to classify."""
    folder = tmp_path_factory.mktemp("labeled")
    chance = random.Random(0)
    words = ["function", "module", "class", "value", "object", "name", "list", "string"]
    for name, count in (("train.csv", 160), ("dev.csv", 40)):
        with (folder / name).open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            for i in range(count):
                mark = ["is true", "is false"][i % 2]
                rest = " ".join(chance.choices(words, k=4))
                writer.writerow([f"the {rest} {mark}", ["yes", "no"][i % 2]])
    return folder


@pytest.fixture(scope="module")
def task(pretrained: Run, labeled: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return pt.finetune(
        pretrained,
        labeled / "train.csv",
        dev=labeled / "dev.csv",
        out=tmp_path_factory.mktemp("runs") / "task",
        epochs=8,
        optimizer=pt.Optimizer(lr=1e-3),
        num_seeds=1,
    )


# -- pretrain -------------------------------------------------------------------------------------------------------


@pytest.mark.not_fast
def test_run_folder_has_recipe_metrics_and_results(pretrained: Run) -> None:
    names = {path.name for path in pretrained.folder.iterdir()}
    assert {
        "recipe.yaml", "config.json", "model.safetensors", "tokenizer.json", "checkpoints", "metrics.jsonl",
        "environment.json", "results.json", "README.md",
    } <= names  # fmt: skip
    metrics = pretrained.metrics()
    losses = [line["mlm"] for line in metrics if "mlm" in line]
    assert losses[-1] < losses[0] - 0.5
    assert [line["step"] for line in metrics if "dev/mlm" in line] == [30, 60]
    assert pretrained.results["dev/mlm"] < losses[0]
    assert pretrained.finished and pretrained.results["step"] == 60


@pytest.mark.end_to_end
def test_recipe_reproduces_its_run(pretrained: Run, tmp_path: Path) -> None:
    run_process("pretrain", "--recipe", pretrained.folder / "recipe.yaml", "--out", tmp_path / "again")
    first, second = (load_file(folder / "model.safetensors") for folder in (pretrained.folder, tmp_path / "again"))
    assert all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.not_fast
def test_run_loads_in_transformers_and_fills_masks_the_same(pretrained: Run) -> None:
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    text = "the value of the [MASK] is a list ."
    ours = pt.fill(pretrained, [text])[0]["candidates"]
    tokenizer = AutoTokenizer.from_pretrained(pretrained.folder)
    model = AutoModelForMaskedLM.from_pretrained(pretrained.folder).eval()
    inputs = tokenizer(text, return_tensors="pt")
    logits = model(**inputs).logits[0, (inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero()[0, 0]]
    logits[tokenizer.all_special_ids] = -1e9
    logits[len(tokenizer) :] = -1e9
    theirs = [tokenizer.decode([i]) for i in logits.topk(5).indices]
    assert [c["token"] for c in ours] == theirs


@pytest.mark.end_to_end
def test_run_killed_five_times_and_resumed_has_the_same_weights(text: Path, tmp_path: Path) -> None:
    seed = int.from_bytes(os.urandom(4), "little")
    print("seed", seed)  # pytest shows it when the test fails
    chance = random.Random(seed)
    arguments = [
        "pretrain",
        "bert-tiny",
        "--data",
        str(text),
        "--steps",
        "200",
        *SMALL,
        "--set",
        "monitor.save_every=5",
    ]
    command = [*COMMAND, *arguments]

    def start(out: str, *more: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen([*command, "--out", str(tmp_path / out), *more], stdout=subprocess.DEVNULL)

    def wait_for(step: int, writing: bool = False) -> None:
        folder = tmp_path / "killed" / "checkpoints"
        while not (
            any(int(path.name.rsplit("-", 1)[1]) >= step for path in folder.glob("step-*"))
            and (not writing or any(folder.glob(".tmp-*")))
        ):
            assert process.poll() is None, "the run ended before it was killed"
            time.sleep(0.0005)

    assert start("whole").wait() == 0
    process = start("killed")
    # Steps are far enough apart that each kill hits new steps, and far enough from the end that the run is alive.
    for number, step in enumerate(chance.randrange(start, start + 20) for start in (5, 35, 65, 95, 125)):
        if number == 2:  # while a checkpoint is being written
            wait_for(step, writing=True)
        else:
            wait_for(step)
            time.sleep(chance.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        process = start("killed", "--resume")
    assert process.wait() == 0
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "killed" / name).read_bytes()


@pytest.mark.end_to_end
def test_ctrl_c_saves_a_checkpoint_and_prints_how_to_resume(text: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = ["pretrain", "bert-tiny", "--data", text, "--out", out, "--steps", "100000", *SMALL]
    environment = {k: v for k, v in os.environ.items() if k != "PRETUNE_PROGRESS"}
    process = subprocess.Popen([*COMMAND, *map(str, command)], stderr=subprocess.PIPE, text=True, env=environment)
    while process.poll() is None and not (out / "metrics.jsonl").exists():
        time.sleep(0.05)
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "resume with the same command and --resume" in err
    assert "Traceback" not in err
    assert list((out / "checkpoints").glob("step-*"))


@pytest.mark.end_to_end
def test_resume_and_from_differ(pretrained: Run, tmp_path: Path) -> None:
    store = pretrained.folder.parent / "store"
    again = run("pretrain", "bert-tiny", "--data", store, "--out", pretrained.folder, "--steps", 60, check=False)
    assert again.returncode == 1 and "already contains a run; resume it with --resume" in again.stderr
    other = run(
        "pretrain", "bert-tiny", "--data", store, "--out", pretrained.folder, "--steps", 70, "--resume", check=False
    )
    assert other.returncode == 1 and "run in this folder is already finished" in other.stderr
    (tmp_path / "moved").mkdir()
    shutil.copy(pretrained.folder / "recipe.yaml", tmp_path / "moved")
    other = run(
        "pretrain", "bert-tiny", "--data", store, "--out", tmp_path / "moved", "--steps", 70, "--resume", check=False
    )
    assert "started with other settings (batch, budget, monitor)" in other.stderr
    started = pt.pretrain(
        "bert-tiny", pt.Store(store), out=tmp_path / "new", init_from=pretrained, objective="mlm",
        budget=pt.Budget(steps=2), batch=pt.Batching(tokens=1024, max_length=64), optimizer=pt.Optimizer(lr=1e-9),
    )  # fmt: skip
    old, new = (load_file(f / "model.safetensors") for f in (pretrained.folder, started.folder))
    name = "bert.encoder.layer.0.output.dense.weight"
    assert np.allclose(old[name], new[name], atol=1e-6)


@pytest.mark.not_fast
def test_continued_pretraining_uses_the_tokenizer_of_the_model(pretrained: Run, text: Path, tmp_path: Path) -> None:
    store = pretrained.folder.parent / "store"
    continued = pt.pretrain(pretrained, store, out=tmp_path / "on", objective="mlm", budget=pt.Budget(steps=1), batch=pt.Batching(tokens=512, max_length=64))  # fmt: skip
    assert continued.results["mlm"] < 6.5
    other = pt.train_tokenizer(text, kind="bpe", vocab_size=700, out=tmp_path / "other")
    wrong = pt.prepare(text, other, out=tmp_path / "store")
    with pytest.raises(pt.PretuneError, match="tokenized with another tokenizer than this model's"):
        pt.pretrain(pretrained, wrong, out=tmp_path / "x", budget=pt.Budget(steps=1))
    with pytest.raises(pt.PretuneError, match="sequences have 1024 tokens, but the model has 512 positions"):
        pt.pretrain(
            "bert-tiny", wrong, out=tmp_path / "y", budget=pt.Budget(steps=1), batch=pt.Batching(max_length=1024)
        )
    with pytest.raises(pt.PretuneError, match="there is no text to train on"):
        pt.pretrain("bert-tiny", out=tmp_path / "z", budget=pt.Budget(steps=1))
    with pytest.raises(pt.PretuneError, match="neither a model folder nor a known model name"):
        pt.pretrain("bert-tny", wrong, out=tmp_path / "w", budget=pt.Budget(steps=1))


# -- finetune, predict ----------------------------------------------------------------------------------------------


@pytest.mark.not_fast
def test_finetuning_learns(task: Run) -> None:
    assert task.results["dev/accuracy"] > 0.9
    assert task.results["labels"] == ["no", "yes"]


@pytest.mark.not_fast
def test_predictions_are_in_order_for_any_batch_size(task: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from pretune.models import length_bucketing

    texts = [f"the {'value ' * (i % 23)} is {'true' if i % 2 else 'false'}" for i in range(120)]
    together = task.predict(texts)
    assert len(together) == len(texts)
    monkeypatch.setattr(length_bucketing, "TOKENS", 512)
    again = task.predict(texts)
    alone = [task.predict(text)[0] for text in texts[:5]]
    for a, b in [*zip(together, again, strict=True), *zip(together, alone, strict=False)]:
        assert a["label"] == b["label"]
        assert a["probability"] == pytest.approx(b["probability"], abs=1e-5)
    assert all(abs(sum(row["probabilities"].values()) - 1) < 1e-5 for row in together)


@pytest.mark.end_to_end
def test_predicting_a_file_writes_all_rows(task: Run, labeled: Path, tmp_path: Path) -> None:
    out = tmp_path / "answers.jsonl"
    answer = run("predict", task.folder, labeled / "dev.csv", "--out", out, "--json")
    assert json.loads(answer.stdout) == {"written": [{"file": str(out), "rows": 40}]}
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    with (labeled / "dev.csv").open() as file:
        expected = list(csv.DictReader(file))
    assert [{"text": row["text"], "label": row["label"]} for row in rows] == expected
    assert sum(row["predicted_label"] == row["label"] for row in rows) / len(rows) > 0.9
    human = run("predict", task.folder, "the value is true").stdout
    assert "yes" in human or "no" in human


@pytest.mark.end_to_end
def test_dropout_can_be_changed(pretrained: Run, labeled: Path, tmp_path: Path) -> None:
    options = ("--epochs", "0.1", "--num-seeds", "1", "--dropout.hidden_dropout_prob", "0.3")
    run("finetune", pretrained.folder, labeled / "train.csv", *options, "--out", tmp_path / "a")
    before, after = (load(folder).config for folder in (pretrained.folder, tmp_path / "a"))
    assert after == dataclasses.replace(before, hidden_dropout_prob=0.3)
    run("finetune", "--recipe", tmp_path / "a" / "recipe.yaml", "--out", tmp_path / "b")
    assert load(tmp_path / "b").config == after
    for dropout, message in (
        (
            {"hiden_dropout_prob": 0.1},
            "config.json: no dropout is named 'hiden_dropout_prob'; did you mean 'hidden_dropout_prob'",
        ),
        ({"hidden_size": 0.5}, "config.json: no dropout is named 'hidden_size'; known: attention_probs_dropout_prob, "),
        (
            {"hidden_dropout_prob": 1.0},
            "dropout.hidden_dropout_prob=1.0: expected a number that is at least 0 and below 1",
        ),
    ):
        with pytest.raises(pt.PretuneError, match=message):
            pt.finetune(pretrained, labeled / "train.csv", out=tmp_path / "c", num_seeds=1, dropout=dropout)
    other = {"hidden_dropout_prob": 0.1}
    with pytest.raises(pt.PretuneError, match="--dropout applies only to models that have weights"):
        pt.finetune("bert-tiny", labeled / "train.csv", tokenizer=pretrained, out=tmp_path / "d", dropout=other)


@pytest.mark.not_fast
def test_pairs_mean_pooling_and_an_auxiliary_loss(pretrained: Run, tmp_path: Path) -> None:
    rows = ["text_a\ttext_b\tlabel"]
    for i in range(60):
        words = ["list", "string", "class"]
        rows.append(
            f"a {words[i % 3]} here\tthe {words[i % 3 if i % 2 else (i + 1) % 3]} there\t{'same' if i % 2 else 'other'}"
        )
    (tmp_path / "pairs.tsv").write_text("\n".join(rows))
    for name, objective in (("a", "classify(pooling=mean)"), ("b", "classify+0.5*mlm")):
        result = pt.finetune(
            pretrained,
            tmp_path / "pairs.tsv",
            dev=tmp_path / "pairs.tsv",
            out=tmp_path / name,
            epochs=2,
            objective=objective,
            num_seeds=1,
        )
        assert 0 <= result.results["dev/accuracy"] <= 1
        rows = pt.predict(result, tmp_path / "pairs.tsv", text="text_a", pair="text_b")
        right = [row["predicted_label"] == row["label"] for row in rows]
        assert np.mean(right) == pytest.approx(
            result.results["dev/accuracy"]
        )  # after loading, it uses the same pooling
    assert "mlm" in result.results


@pytest.mark.not_fast
def test_training_from_scratch(pretrained: Run, labeled: Path, tmp_path: Path) -> None:
    scratch = pt.finetune(
        "bert-tiny", labeled / "train.csv", out=tmp_path / "scratch", tokenizer=pretrained.folder, epochs=1, num_seeds=1,
)  # fmt: skip
    assert scratch.results["rows"] == 128
    with pytest.raises(pt.PretuneError, match=r"is a preset without weights; .* give --tokenizer to train"):
        pt.finetune("bert-tiny", labeled / "train.csv", out=tmp_path / "x", num_seeds=1)


@pytest.mark.not_fast
def test_invalid_labeled_data_is_rejected(pretrained: Run, labeled: Path, tmp_path: Path) -> None:
    one = tmp_path / "one.csv"
    one.write_text("text,label\na,x\nb,x\n")
    with pytest.raises(pt.PretuneError, match="every row has the label 'x'; add rows with another label"):
        pt.finetune(pretrained, one, out=tmp_path / "a", num_seeds=1)
    dev = tmp_path / "dev.csv"
    dev.write_text("text,label\na,yes\nb,Yes\n")
    with pytest.raises(pt.PretuneError, match=r"dev\.csv, line 3: label 'Yes' was not in training; did you mean 'yes'"):
        pt.finetune(pretrained, labeled / "train.csv", dev=dev, out=tmp_path / "a", num_seeds=1)
    assert not (tmp_path / "a").exists()
    answer = run("finetune", pretrained.folder, one, "--label", "lable", "--out", tmp_path / "a", check=False)
    assert answer.returncode == 1 and "no column 'lable' for the label" in answer.stderr


@pytest.mark.not_fast
def test_long_texts_are_truncated_and_counted(pretrained: Run, tmp_path: Path) -> None:
    rows = "\n".join(f"{'word ' * (500 if i == 3 else 5)},{'a' if i % 2 else 'b'}" for i in range(8))
    (tmp_path / "long.csv").write_text("text,label\n" + rows)
    result = pt.finetune(pretrained, tmp_path / "long.csv", out=tmp_path / "run", epochs=1, num_seeds=1)
    assert result.results["truncated"] == 1


@pytest.mark.not_fast
def test_finetuned_model_predicts_the_same_in_transformers(task: Run) -> None:
    from transformers import pipeline

    texts = ["the value is true", "the name is false"]
    theirs = pipeline("text-classification", model=str(task.folder))(texts)
    ours = task.predict(texts)
    for a, b in zip(ours, theirs, strict=True):
        assert a["label"] == b["label"] and a["probability"] == pytest.approx(b["score"], abs=1e-4)


def test_predict_needs_a_finetuned_model(pretrained: Run) -> None:
    with pytest.raises(pt.PretuneError, match="was not trained for a task"):
        pretrained.predict(["x"])
    with pytest.raises(pt.PretuneError, match="no inputs were given"):
        pt.predict(pretrained)


# -- fill, embed, show ----------------------------------------------------------------------------------------------


def test_fill_returns_candidates_for_each_mask(pretrained: Run) -> None:
    rows = pt.fill(pretrained, ["the [MASK] of a [MASK] is .", "[MASK] [MASK]"], top_k=3)
    assert [row["gap"] for row in rows] == [1, 2, 1, 2]
    assert all(len(row["candidates"]) == 3 for row in rows)
    assert "[MASK]" not in rows[0]["filled"] and rows[0]["filled"].startswith("the ")
    restored = pt.fill(pretrained, ["The value of the expression is a list."], mask_rate=0.3)[0]
    assert restored["original"] == "the value of the expression is a list ."
    assert restored["masked"].count("[MASK]") >= 2
    assert len(restored["restored"].split()) >= 8
    with pytest.raises(pt.PretuneError, match="the text has no mask; put \\[MASK\\] in place of each word to predict"):
        pt.fill(pretrained, ["no gap here"])
    with pytest.raises(pt.PretuneError, match="512 positions"):
        pt.fill(pretrained, ["word " * 600 + "[MASK]"])


def test_embed_returns_one_vector_per_text(pretrained: Run, tmp_path: Path) -> None:
    texts = ["one", "two words", "one", ""]
    rows = pt.embed(pretrained, texts)
    assert [row["text"] for row in rows] == texts
    assert rows[0]["vector"] == pytest.approx(rows[2]["vector"], abs=1e-5)
    assert rows[0]["vector"] != rows[1]["vector"]
    run("embed", pretrained.folder, *texts[:3], "--out", tmp_path / "v.npy", "--layer", "0", "--pooling", "max")
    assert np.load(tmp_path / "v.npy").shape == (3, 128)


@pytest.mark.end_to_end
def test_show_describes_presets_objectives_runs_and_stores(pretrained: Run) -> None:
    presets = json.loads(run("show", "presets", "--json").stdout)["presets"]
    assert {row["preset"]: row["parameters"] for row in presets}["bert-base"] == 108_891_648
    assert {"mlm", "nsp", "lm", "classify"} <= {r["objective"] for r in pt.show("objectives").facts["objectives"]}
    facts = pt.show(pretrained).facts
    assert facts["finished"] and facts["recipe"]["objective"] == "mlm+nsp"
    assert pt.show(pretrained.folder.parent / "store").facts["documents"] > 10
    answer = run("show", "nowhere", check=False)
    assert answer.returncode == 1 and "nothing with this name can be shown" in answer.stderr


@pytest.mark.end_to_end
def test_adapt_continues_pretraining_and_compares(pretrained: Run, text: Path, tmp_path: Path) -> None:
    arguments = [pretrained.folder, text, "--steps", 60, *SMALL, "--set", "optimizer.lr=1e-3", "--out", tmp_path / "a"]
    result = json.loads(run("adapt", *arguments, "--json").stdout)
    assert result["after"]["mlm"] < result["before"]["mlm"]
    assert result["before"]["mlm/perplexity"] == pytest.approx(np.exp(result["before"]["mlm"]))
    assert len(result["fills"]) == 5
    for row in result["fills"]:
        assert row["text"].count("[MASK]") == 1 and row["word"].isalpha()
        assert len(row["before"].split(", ")) == 3
    # The starting point is the model itself: a run with a zero learning rate ends where this one began.
    still = pt.adapt(
        pretrained, text, budget=pt.Budget(steps=1), optimizer=pt.Optimizer(lr=1e-12), out=tmp_path / "b",
        batch=pt.Batching(tokens=256, max_length=64),
    )  # fmt: skip
    assert still.after["mlm"] == pytest.approx(result["before"]["mlm"], abs=1e-4)
    assert still.table()["held_out_text"][0]["measure"] == "mlm"
    assert pt.fill(still, ["the [MASK] of a list"])


@pytest.mark.end_to_end
def test_neighbors_are_sorted_by_similarity(pretrained: Run, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("A function returns the value.\nThe list is empty. Names are strings!\n\n", encoding="utf-8")
    rows = pt.neighbors(pretrained, "Value", "A function returns the value.", corpus=corpus, top_k=4)
    assert rows[0]["word"] == "value" and rows[0]["similarity"] == pytest.approx(1.0, abs=1e-3)
    assert rows[0]["text"] == "A function returns the value."
    assert len({row["word"] for row in rows}) == 4
    assert all(row["word"] in row["text"].lower() for row in rows)
    similarities = [row["similarity"] for row in rows]
    assert similarities == sorted(similarities, reverse=True)
    assert (
        len(pt.neighbors(pretrained, "returns", "It returns nothing.", top_k=3)) == 3
    )  # in the bundled example messages
    refused = run("neighbors", pretrained.folder, "dog", "A cat.", check=False)
    assert refused.returncode == 1 and "'dog' is not in the text" in refused.stderr


def test_word_vector_is_the_mean_of_its_token_vectors(pretrained: Run) -> None:
    import torch

    from pretune.inference.neighbors import word_vectors
    from pretune.models.length_bucketing import text_batches
    from pretune.models.loading import load_model

    model = load_model(pretrained.folder)
    texts = ["Unparenthesized subexpressions evaluate.", "a b"]
    (vectors,), words, places = word_vectors(model, texts)
    assert words[-4:] == ["unparenthesized", "subexpressions", "evaluate", "."] and places.tolist() == [
        1,
        1,
        0,
        0,
        0,
        0,
    ]
    ids = model.require_tokenizer().encode("unparenthesized")
    assert len(ids) > 1
    (batch,) = text_batches(model, texts[:1])
    with torch.no_grad():
        states = model.root.eval().backbone(batch.packed[0]).last
    np.testing.assert_allclose(vectors[2], states[1 : 1 + len(ids)].mean(0).numpy(), atol=1e-5)


@pytest.mark.end_to_end
def test_quickstart_writes_a_table_and_a_report(pretrained: Run, tmp_path: Path) -> None:
    arguments = [
        "quickstart",
        pretrained.folder,
        "--labels-per-class",
        4,
        "--num-seeds",
        2,
        "--epochs",
        2,
        "--seconds",
        2,
        "--json",
    ]
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / MARKER).touch()
    (tmp_path / "q" / "report.html").write_text("an older report")  # an existing quickstart is replaced
    result = json.loads(run(*arguments, "--out", tmp_path / "q").stdout)
    assert sorted(result) == ["bag_of_words", "pretrained", "scratch", "seconds"]
    for name in ("pretrained", "scratch", "bag_of_words"):
        assert 0.0 < result[name]["mean"] < 1.0 and result[name]["sd"] >= 0.0
    page = (tmp_path / "q" / "report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 2 and "the same network, random weights" in page
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("mine")
    with pytest.raises(pt.PretuneError, match="is not a quickstart"):
        pt.quickstart(pretrained, out=tmp_path / "other")
    assert (tmp_path / "other" / "thesis.tex").exists()


@pytest.mark.not_fast
def test_scratch_reinitializes_the_same_network(pretrained: Run, labeled: Path, tmp_path: Path) -> None:
    still = {"epochs": 0.01, "optimizer": pt.Optimizer(lr=1e-12)}
    for name, scratch in (("kept", False), ("scratch", True), ("again", True)):
        pt.finetune(pretrained, labeled / "train.csv", out=tmp_path / name, from_scratch=scratch, **still, num_seeds=1)  # type: ignore[arg-type]
    files = {n: load_file(tmp_path / n / "model.safetensors") for n in ("kept", "scratch", "again")}
    name = "bert.embeddings.word_embeddings.weight"
    assert np.allclose(files["kept"][name], load_file(pretrained.folder / "model.safetensors")[name], atol=1e-6)
    assert not np.allclose(files["scratch"][name], files["kept"][name], atol=1e-3)
    assert all(np.array_equal(files["scratch"][key], files["again"][key]) for key in files["scratch"])
    assert not list((tmp_path / "kept").glob("checkpoints/*"))


def test_prepare_says_that_a_store_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PRETUNE_PROGRESS", "plain")
    text, tokenizer = tmp_path / "text.txt", small_tokenizer("wordpiece")
    text.write_text("The train was late.")
    for told in (False, True):
        pt.prepare(text, tokenizer, out=tmp_path / "store", processes=1)
        assert ("the store was already prepared from these files" in capsys.readouterr().err) == told
