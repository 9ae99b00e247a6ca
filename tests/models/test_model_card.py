"""Model cards report what the files of a run contain, and their code examples run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch import nn

import pretune as pt
from pretune.objectives import parse_objective
from pretune.training.run_folder import Run
from tests.support.objective_data import learn, write
from tests.support.task_rows import positive_pairs
from tests.support.tiny_models import random_model, save_random_model, small_tokenizer


def card(folder: Path) -> tuple[dict[str, Any], str]:
    """Return the metadata of a card and its text."""
    _, head, text = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    return yaml.safe_load(head), text


def run_snippets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run every code example of a card, and return the package that each imports first."""
    monkeypatch.chdir(folder.parent)
    blocks = re.findall(r"^```python\n(.*?)^```", card(folder)[1], re.MULTILINE | re.DOTALL)
    for block in blocks:
        exec(compile(block, str(folder / "README.md"), "exec"), {})
    return [block.split()[1] for block in blocks]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("card")
    train, dev = (
        write(folder / "my pairs.jsonl", positive_pairs(40)),
        write(folder / "dev.jsonl", positive_pairs(10, seed=1)),
    )
    return learn("contrast(normalize=true)", train, folder / "run", dev, epochs=1)


@pytest.mark.not_fast
def test_the_card_of_a_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    head, text = card(run.folder)
    assert head["library_name"] == "pretune" and head["pipeline_tag"] == "sentence-similarity"
    assert "license" not in head and "language" not in head  # which was not given
    assert "No license was given" in text
    (index,) = head["model-index"][0]["results"]
    assert index["dataset"]["name"] == "dev.jsonl"
    values = {metric["type"]: metric["value"] for metric in index["metrics"]}
    assert values == {"accuracy": run.results["dev/accuracy"], "mrr": run.results["dev/mrr"]}
    assert f"| accuracy | {run.results['dev/accuracy']:.6g} |" in text
    date = json.loads((run.folder / "environment.json").read_text())["date"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", date) and f"On `dev.jsonl` ({date}):" in text
    assert f"Made by `pretune finetune` from `bert-tiny` on {date}." in text
    assert "| training data | `my pairs.jsonl` |" in text and "| training examples | 40 |" in text
    assert str(run.folder.parent) not in text  # paths are not published
    assert "scaled to unit length" in text
    assert run_snippets(run.folder, monkeypatch) == ["pretune"]


def test_the_card_of_an_export(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pt.export(run, out=tmp_path / "vectors", license="apache-2.0")
    head, text = card(tmp_path / "vectors")
    assert head["license"] == "apache-2.0" and "## License\n\napache-2.0\n" in text
    assert head["library_name"] == "sentence-transformers" and "sentence-transformers" in head["tags"]
    assert head["model-index"][0]["name"] == "vectors"
    assert "It was exported from `run` with pretune." in text and "Texts longer than 512 tokens are cut." in text
    assert run_snippets(tmp_path / "vectors", monkeypatch) == ["pretune", "sentence_transformers"]
    # The license belongs to the weights; scores are known for the run only.
    pt.export(tmp_path / "vectors", format="hf", out=tmp_path / "again")
    head, text = card(tmp_path / "again")
    assert head["license"] == "apache-2.0" and "metrics" not in head and "No scores are known" in text


def test_the_card_of_an_incomplete_or_changed_model_has_no_scores(run: Run, tmp_path: Path) -> None:
    """Scores are left out without the head that they were measured with, or with other positions."""
    pt.export(run, head="none", out=tmp_path / "bare")
    head, text = card(tmp_path / "bare")
    assert "model-index" not in head and "## Scores" not in text and "## Training" in text
    assert head["pipeline_tag"] == "feature-extraction" and "No scores are known" in text
    pt.export(run, max_positions=600, out=tmp_path / "longer")
    assert "## Scores" not in card(tmp_path / "longer")[1]


@pytest.mark.not_fast
def test_the_card_reports_several_seeds(tmp_path: Path) -> None:
    train, dev = (
        write(tmp_path / "a.jsonl", positive_pairs(30)),
        write(tmp_path / "b.jsonl", positive_pairs(10, seed=1)),
    )
    several = learn("contrast", train, tmp_path / "run", dev, epochs=1, num_seeds=2)
    spread = several.results["seeds"]["dev/mrr"]
    text = card(several.folder)[1]
    assert "of the best of 2 seeds" in text
    assert f"| mrr | {several.results['dev/mrr']:.4g} | {spread['mean']:.4g} ± {spread['sd']:.2g} |" in text


@pytest.mark.not_fast
def test_the_bundled_model_keeps_its_license(tmp_path: Path) -> None:
    pt.export("pretune-small-en", out=tmp_path / "out")
    head, text = card(tmp_path / "out")
    assert head["license"] == "cc-by-sa-4.0" and head["language"] == "en"
    assert "exported from `pretune-small-en`" in text


OBJECTIVES = [
    ("bert", "mlm", "fill-mask"), ("bert", "mlm+nsp", "fill-mask"), ("roberta", "mlm", "fill-mask"), ("gpt2", "lm", "text-generation"),
    ("t5", "spans", None), ("bart", "translate", "translation"), ("electra", "rtd", None), ("modernbert", "", "feature-extraction"),
    ("t5", "", "feature-extraction"), ("bert", "classify", "text-classification"), ("bert", "classify(multi_label=true)", "text-classification"), ("bert", "regress", "text-classification"),
    ("electra", "tag", "token-classification"), ("bert", "answer", "question-answering"), ("bert", "choose", "multiple-choice"),
    ("gpt2", "tag", "token-classification"), ("gpt2", "choose(pooling=last)", "multiple-choice"), ("bart", "answer", "question-answering"),
]  # fmt: skip


LONGER = {"max_position_embeddings": 64, "n_positions": 64}


@pytest.mark.parametrize(("family", "objective", "tag"), OBJECTIVES)
def test_code_examples_in_the_card_run(
    family: str, objective: str, tag: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = small_tokenizer("wordpiece" if family in ("bert", "electra") else "byte-level-bpe")
    model = random_model(family, words, {"t5": "spans", "bart": "denoise", "gpt2": "lm"}.get(family, "mlm"), **LONGER)
    model.root.heads = nn.ModuleDict()
    model.objective, model.labels = objective, ["O", "B-x"] if objective.startswith(("classify", "tag")) else []
    if objective:
        model.add_heads(parse_objective(objective, labels=tuple(model.labels)).objectives)
    model.save(tmp_path / "run")
    pt.export(tmp_path / "run", out=tmp_path / "my model")
    assert card(tmp_path / "my model")[0].get("pipeline_tag") == tag
    ours = [] if objective.startswith(("answer", "choose")) else ["pretune"]  # these read files
    assert run_snippets(tmp_path / "my model", monkeypatch) == [*ours, "transformers"]


@pytest.mark.not_fast
def test_code_examples_in_the_card_of_a_graph_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pt.export(save_random_model(tmp_path / "run", "bert", "mlm"), format="onnx", out=tmp_path / "graph")
    assert card(tmp_path / "graph")[0]["library_name"] == "onnxruntime"
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"^```python\n(import onnxruntime.*?)^```", card(tmp_path / "graph")[1], re.M | re.DOTALL)
    exec(compile(block, "README.md", "exec"), {})
