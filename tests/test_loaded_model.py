"""The loaded model: its methods give what the verbs give, and its weights are read once."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pretune as pt
from pretune.models import loading
from pretune.models.model import Model
from pretune.objectives import parse_objective
from pretune.training.run_folder import RECIPE, RESULTS
from tests.support.tiny_models import random_model, save_random_model, small_tokenizer

TEXTS = ["The train was late.", "Yes.", "We waited for an hour, and nobody came."]
MASKED = ["The [MASK] was late.", "We [MASK] for [MASK]."]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return a list to which the folders are added whose weights are read."""
    found: list[Path] = []
    read = loading.read_weights
    monkeypatch.setattr(loading, "read_weights", lambda folder: [found.append(folder), read(folder)][1])
    return found


def classifier(folder: Path) -> Path:
    """Save a random classifier of two classes."""
    model: Model = random_model("bert", small_tokenizer("wordpiece"), "mlm")
    model.objective, model.labels = "classify", ["bad", "good"]
    model.root.heads.clear()
    model.add_heads(parse_objective("classify", labels=("bad", "good")).objectives)
    model.save(folder)
    return folder


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("masked"), "bert", "mlm")


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_random_model(tmp_path_factory.mktemp("causal"), "gpt2", "lm")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return classifier(tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> pt.Run:
    folder = classifier(tmp_path_factory.mktemp("run"))
    (folder / RECIPE).write_text("# pretune finetune\nseed: 0\n")
    (folder / RESULTS).write_text(json.dumps({"dev/accuracy": 0.75, "step": 3}))
    (folder / "metrics.jsonl").write_text('{"step": 1, "classify": 0.7}\n{"step": 2, "classify": 0.5}\n')
    return pt.Run(folder)


@pytest.mark.not_fast
def test_methods_give_what_the_verbs_give(masked: Path, causal: Path, trained: Path) -> None:
    model = pt.load(masked)
    vectors = model.embed(TEXTS)
    assert np.array_equal(vectors, np.array([row["vector"] for row in pt.embed(masked, TEXTS)], dtype=np.float32))
    assert vectors.dtype == np.float32 and vectors.shape == (3, 16)
    assert model.fill(MASKED, top_k=3).rows == pt.fill(masked, MASKED, top_k=3).rows
    question: dict[str, Any] = {"template": "{text} [MASK]", "answers": ["a", "b"]}
    assert model.ask(TEXTS, **question) == pt.ask(masked, TEXTS, **question)
    options: dict[str, Any] = {"temperature": 0.9, "seed": 3, "max_new_tokens": 4}
    assert pt.load(causal).generate(TEXTS[:2], **options) == pt.generate(causal, TEXTS[:2], **options)
    assert pt.load(trained).predict(TEXTS) == pt.predict(trained, TEXTS)
    assert pt.load(trained).predict(TEXTS, probabilities=True) == pt.predict(trained, TEXTS, probabilities=True)


def test_a_single_text_gives_a_single_result(masked: Path, causal: Path, trained: Path) -> None:
    model, judge, writer = pt.load(masked), pt.load(trained), pt.load(causal)
    assert np.array_equal(model.embed(TEXTS[0]), model.embed(TEXTS[:1])[0])
    assert judge.predict(TEXTS[0]) == judge.predict(TEXTS[:1])[0]
    assert writer.generate("The", max_new_tokens=3) == writer.generate(["The"], max_new_tokens=3)[0]
    found = model.fill(MASKED[1], top_k=2)
    assert found["filled"] == model.fill(MASKED)[1]["filled"] and [len(gap) for gap in found["gaps"]] == [2, 2]
    tokens = model.tokenize(TEXTS[0])
    assert tokens == model.tokenize(TEXTS)[0] and len(tokens) == len(tokens.ids) == len(tokens.tokens)
    assert torch.equal(model(TEXTS[0]).ids, torch.tensor([tokens.ids]))
    assert torch.equal(model(tokens.ids).last_hidden_state, model(torch.tensor(tokens.ids)).last_hidden_state)


def test_empty_lists_give_empty_results(masked: Path, trained: Path) -> None:
    model, judge = pt.load(masked), pt.load(trained)
    assert model.embed([]).shape == (0, 16) and model.tokenize([]) == [] and len(model([])) == 0
    assert [len(result) for result in (model.fill([]), model.generate([]), model.ask([]), judge.predict([]))] == [0] * 4
    with pytest.raises(pt.PretuneError, match="not trained for a task"):
        model.predict([])


@pytest.mark.parametrize("wrong", [5, None, b"text", [5], ["a text", 5], [None], ["a", b"b"]], ids=repr)
def test_inputs_that_are_not_texts_are_refused_at_the_call(wrong: Any, masked: Path, trained: Path) -> None:
    model, judge = pt.load(masked), pt.load(trained)
    calls: list[Any] = [model.embed, model.fill, model.generate, model.ask, model.tokenize, judge.predict]
    for call in calls if wrong == [5] else [*calls, model]:  # [5] is a token id
        with pytest.raises(pt.PretuneError, match=r"; give "):
            call(wrong)


def test_arrays_tuples_and_series_of_texts_are_lists_of_texts(masked: Path, trained: Path) -> None:
    pandas = pytest.importorskip("pandas")
    model, judge = pt.load(masked), pt.load(trained)
    expected, labels = model.embed(TEXTS), judge.predict(TEXTS)
    for texts in (tuple(TEXTS), np.array(TEXTS), pandas.Series(TEXTS)):
        assert np.array_equal(model.embed(texts), expected) and judge.predict(texts) == labels
        assert torch.equal(model(texts).mask, model(TEXTS).mask)


def test_files_are_read_by_the_verbs(trained: Path, masked: Path, tmp_path: Path) -> None:
    file = tmp_path / "texts.csv"
    file.write_text("text\n" + "\n".join(f'"{text}"' for text in TEXTS))
    assert pt.load(trained).predict(str(file)) == pt.predict(trained, file)
    assert np.array_equal(pt.load(masked).embed(file), pt.load(masked).embed(TEXTS))


def test_models_without_the_head_name_what_would_give_it(masked: Path, causal: Path) -> None:
    for call, message in (
        (lambda: pt.load(masked).predict(TEXTS), "not trained for a task; fine-tune it first"),
        (lambda: pt.load(masked).generate(TEXTS), "use a model with the objective 'lm'"),
        (lambda: pt.load(causal).fill(MASKED), "use a model with the objective 'mlm'"),
    ):
        with pytest.raises(pt.PretuneError, match=message):
            call()
    with pytest.raises(pt.PretuneError, match="preset without weights"):
        pt.load("bert-tiny")
    with pytest.raises(pt.PretuneError, match="of type int"):
        pt.load(5)  # type: ignore[arg-type]


def test_the_weights_are_read_once(masked: Path, trained: Path, reads: list[Path]) -> None:
    model = pt.load(masked)
    assert len(reads) == 1
    model.embed(TEXTS), model.fill(MASKED), model(TEXTS), pt.embed(model, TEXTS), pt.fill(model, MASKED)
    pt.neighbors(model, "train", "The train was late.", max_words=50)
    pt.ask(model, TEXTS, template="{text} [MASK]", answers=["a", "b"])
    assert len(reads) == 1
    judge = pt.load(trained)
    assert judge.predict(TEXTS) == pt.predict(judge, TEXTS) == pt.predict([judge, judge], TEXTS)
    assert len(reads) == 2


def test_a_run_reads_its_weights_once(run: pt.Run, reads: list[Path]) -> None:
    first = run.predict(TEXTS)
    assert run.predict(TEXTS) == first == [{name: row[name] for name in first[0]} for row in run.load().predict(TEXTS)]
    assert len(pt.predict(run, TEXTS)) == 3 and len(reads) == 1
    other = pt.Run(run.folder)
    (run.folder / RESULTS).rename(run.folder / "hidden")
    try:
        other.predict(TEXTS), other.predict(TEXTS)
    finally:
        (run.folder / "hidden").rename(run.folder / RESULTS)
    assert len(reads) == 3  # the model of an unfinished run may change


def test_runs_are_shown_in_notebooks(run: pt.Run) -> None:
    page = run._repr_html_()
    assert "dev/accuracy" in page and "0.75" in page
    pytest.importorskip("pandas")
    assert run.to_pandas()["classify"].tolist() == [0.7, 0.5]
    assert repr(run) == f"Run({str(run.folder)!r}, finished)"


def test_the_model_describes_itself(trained: Path) -> None:
    model = pt.load(trained)
    assert (model.family, model.labels, model.objective) == ("bert", ["bad", "good"], "classify")
    assert model.num_parameters == sum(p.numel() for p in model.core.root.parameters())
    assert model.config.hidden_size == 16 and model.tokenizer.size > 100
    assert repr(model).startswith(f"LoadedModel({str(trained)!r}, family=bert, parameters=")
    assert "labels=bad, good" in repr(model) and "<td>bad, good</td>" in model._repr_html_()


def test_saved_and_exported_models_give_the_same(trained: Path, tmp_path: Path) -> None:
    model = pt.load(trained)
    model.save(tmp_path / "saved")
    model.export(tmp_path / "exported")
    expected = model.predict(TEXTS)
    assert pt.load(tmp_path / "saved").predict(TEXTS) == expected == pt.load(tmp_path / "exported").predict(TEXTS)


@pytest.mark.not_fast
def test_finetune_keeps_a_temporary_run_as_long_as_it_is_used(masked: Path, tmp_path: Path) -> None:
    train = tmp_path / "train.csv"
    train.write_text("text,label\n" + "good day,good\nbad day,bad\n" * 8)
    model = pt.load(masked)
    before = {name: tensor.clone() for name, tensor in model.core.root.tensors().items()}
    options: dict[str, Any] = {"num_seeds": 1, "report": False, "budget": pt.Budget(steps=2)}
    run = model.finetune(train, dev=train, **options)
    assert run.recipe["model"] == str(masked) and run.finished
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.core.root.tensors().items())
    loaded, folder, labels = run.load(), run.folder, [row["label"] for row in run.predict(TEXTS)]
    del run
    gc.collect()
    assert folder.is_dir() and [row["label"] for row in loaded.predict(TEXTS)] == labels
    del loaded
    gc.collect()
    assert not folder.exists()
    kept = model.finetune(train, dev=train, out=tmp_path / "kept", **options)
    assert kept.folder == tmp_path / "kept"


@pytest.mark.not_fast
def test_adapt_keeps_a_temporary_run_as_long_as_it_is_used(masked: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"The train number {number} was late. We waited for hours." for number in range(40)))
    model = pt.load(masked)
    options: dict[str, Any] = {"budget": pt.Budget(steps=1), "batch": pt.Batching(tokens=96, max_length=24)}
    adapted = model.adapt(text, **options)
    folder = adapted.run.folder
    assert os.fspath(adapted) == str(folder) and adapted.run.recipe["model"] == str(masked)
    before, after = (f"{losses['mlm']:.4g}" for losses in (adapted.before, adapted.after))
    assert repr(adapted) == f"AdaptationResult({str(folder)!r}, mlm {before} before and {after} after)"
    assert pt.fill(adapted, MASKED) == pt.fill(folder, MASKED)
    loaded = adapted.load()
    assert loaded.reference == str(folder) and loaded.objective == "mlm"
    del adapted
    gc.collect()
    assert folder.is_dir() and len(loaded.fill(MASKED)) == 3
    del loaded
    gc.collect()
    assert not folder.exists()
    assert model.adapt(text, tmp_path / "kept", **options).run.folder == tmp_path / "kept"


def test_translate_and_evaluate_use_the_model_in_memory(masked: Path, tmp_path: Path, reads: list[Path]) -> None:
    model = pt.load(save_random_model(tmp_path / "model", "bart", "translate"))
    options: dict[str, Any] = {"max_new_tokens": 3}
    rows = pt.translate(model, TEXTS[:2], **options)
    assert len(reads) == 1 and rows == pt.translate(tmp_path / "model", TEXTS[:2], **options)
    assert model(TEXTS[:2]).last_hidden_state.shape[::2] == (2, 16)  # of the encoder
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    scored = pt.load(masked)
    reads.clear()
    assert pt.evaluate(scored, data=tmp_path / "texts.txt").describe()["bits_per_byte"] > 0 and not reads


@pytest.mark.parametrize(
    ("verb", "target", "options"),
    [
        ("quantize", "compression.quantization.run_quantization", {}),
        ("prune", "compression.pruning_job.run_pruning", {"drop_layers": "1"}),
        (
            "compress",
            "compression.pipeline_search.run_search",
            {"target": "quality>=0.9", "train": "a.csv", "dev": "b.csv"},
        ),
        ("distill", "compression.distillation.run_distillation", {"student": "layers=1", "train": "train.csv"}),
        ("adapt", "training.jobs.adapting.adapt", {}),
    ],
)
def test_commands_that_write_models_get_the_path_of_a_loaded_model(
    verb: str, target: str, options: dict[str, Any], trained: Path, masked: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    jobs: list[Any] = []
    monkeypatch.setattr(f"pretune.{target}", lambda job, *others: jobs.append(job))
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    source = masked if verb == "adapt" else trained
    data = (tmp_path / "texts.txt",) if verb == "adapt" else ()
    getattr(pt, verb)(pt.load(source), *data, out=tmp_path / "out", **options)
    (job,) = jobs
    assert (job.teachers if verb == "distill" else [job.model]) == [str(source)]


def test_jobs_record_the_name_of_a_bundled_model() -> None:
    from pretune.verbs.shared_inputs import model_reference

    assert model_reference(pt.load("pretune-small-en")) == "pretune-small-en"


def test_importing_pretune_does_not_import_torch() -> None:
    import subprocess
    import sys

    code = "import sys, pretune; sys.exit('torch' in sys.modules or 'pretune.loaded_model' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
