"""Models exported as a single Python file give the outputs of pretune, without pretune, for every family and head."""

from __future__ import annotations

import ast
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pretune as pt
from pretune.inference.fill import MaskFiller
from pretune.inference.generation.causal_generation import TextGenerator
from pretune.inference.generation.decoding_loops import GenerationConfig
from pretune.inference.predict import Predictor, blank_predictions, rows_without_tokens, texts_as_excerpt
from pretune.models.length_bucketing import text_batches
from pretune.models.model import Model
from pretune.models.single_file.export import FAMILIES, export_single_file
from pretune.nn.attention.patterns import causal
from pretune.objectives import Task, parse_objective
from pretune.runtime.errors import PretuneError
from tests.support.one_word_task import trained
from tests.support.tiny_models import random_model, small_tokenizer, tiny
from tests.support.transformers_cases import TINY

TEXTS = [
    "The ferry leaves at nine.",
    "",
    "Yes",
    "Zoë paid 3 € — naïve? 😀 \u202eabc\u0301 \ue000\ue0f0 [MASK] [SEP] </s>\t北京",
    "She read the letter twice, folded it, and put it back into the drawer without a word to anybody in the house. "
    * 3,
]
PAIRS = ["No.", "It left.", "", "one two three", "Nobody had expected that; prices rose in March. " * 9]
MASKED = ["The [MASK] leaves at [MASK].", "[MASK] 😀"]
PROMPTS = ["The ferry", "She read the letter", "Yes"]
LABELS = ("a", "b", "c")
TAGS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
CLASSIFY, MANY = "classify", "classify(multi_label=true,pooling=mean)"
# The heads that families are tested with: first the cases of every run, then those of long runs.
QUICK: dict[str, tuple[str, ...]] = {
    "bert": (CLASSIFY, "regress", "tag", "contrast", "mlm"), "gpt2": ("lm",), "modernbert": (MANY,), "deberta": ("mlm",),
}  # fmt: skip
LONG: dict[str, tuple[str, ...]] = {
    "bert": (MANY, "classify(pooling=attention)", "classify(pooling=concat)", "lm", "none", "classify on mix"),
    "albert": ("mlm",), "camembert": ("contrast",), "deberta-v2": ("tag",), "distilbert": ("regress",),
    "electra": (CLASSIFY,), "ernie": (MANY,), "gpt2": (CLASSIFY,), "modernbert": (CLASSIFY, "mlm"), "mpnet": ("contrast",),
    "openai-gpt": ("lm",), "roberta": ("mlm", "tag"), "xlm-roberta": (CLASSIFY,), "xlnet": (CLASSIFY,),
}  # fmt: skip
GROUPS = [[(family, head) for family, heads in table.items() for head in heads] for table in (QUICK, LONG)]
CASES = [
    pytest.param(group, *case, marks=[pytest.mark.end_to_end] * group)
    for group, cases in enumerate(GROUPS)
    for case in cases
]
# Imports of pretune and of everything that a small environment does not have fail in the program that uses the files.
PROGRAM = """
import importlib.util, json, sys
from pathlib import Path

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("pretune", "transformers", "safetensors", "sentence_transformers"):
            raise ImportError(f"{name} is not installed")

sys.meta_path.insert(0, Blocked())
folder = Path(sys.argv[1])
job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
found = {}
for name, method in job["methods"].items():
    spec = importlib.util.spec_from_file_location(f"model_{len(found)}", folder / name / "model.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    model = module.load()
    answers = {"states": [x.tolist() for x in model.states(job["texts"])]}
    if method == "predict":
        answers["predict"] = model.predict(job["texts"])
        if hasattr(model, "frame") and job["pairs"][name]:
            answers["pairs"] = model.predict(job["texts"], job["pairs"][name])
    elif method == "embed":
        answers["embed"] = model.embed(job["texts"]).tolist()
    elif method == "fill":
        answers["fill"] = [model.fill(text, top_k=3) for text in job["masked"]]
    elif method == "generate":
        answers["generate"] = model.generate(job["prompts"], max_new_tokens=8)
        answers["sampled"] = [model.generate(job["prompts"], 8, top_k=1), *(model.generate(job["prompts"], 8, 1.0, None, 0.9, seed=s) for s in (1, 1))]
    found[name] = answers
assert not any(name.split(".")[0] == "pretune" for name in sys.modules)
(folder / "found.json").write_text(json.dumps(found), encoding="utf-8")
"""


def make_model(family: str, head: str) -> tuple[Model, list[Any]]:
    """Return a tiny random model of a family with one head, and its objectives."""
    sizes = {key: value for key, value in TINY[family][0].items() if key != "vocab_size"}
    kind: Any = "byte-level-bpe" if family in ("gpt2", "roberta") else "wordpiece"
    model = random_model(family, small_tokenizer(kind), "lm" if "gpt" in family else "mlm", **sizes)
    if head == "none":
        return model, []
    labels = TAGS if head == "tag" else LABELS
    objectives = list(parse_objective(head, labels=labels).objectives)
    model.root.heads = torch.nn.ModuleDict()
    model.add_heads(objectives)
    for name, parameter in model.root.heads.named_parameters():
        torch.nn.init.normal_(parameter, std=0.3 if "weight" in name else 0.1)
    model.root.eval().requires_grad_(False)
    return model, objectives


def takes_pairs(task: Any, family: str) -> bool:
    """Return whether a task is tested with pairs of texts."""
    return task.name in ("classify", "regress") and "gpt" not in family


def expected_answers(model: Model, family: str, objectives: list[Any]) -> dict[str, Any]:
    """Return the answers of pretune."""
    found: dict[str, Any] = {"states": [[]] * len(TEXTS)}
    pattern = causal if objectives and objectives[0].name == "lm" else None
    for batch in text_batches(model, TEXTS):
        parts = model.backbone(replace(batch.packed[0], pattern=pattern)).last.split(
            batch.packed[0].offsets.diff().tolist()
        )
        for row, part in zip(batch.rows, parts, strict=False):
            found["states"][row] = part.tolist()
    objective = objectives[0] if objectives else None
    if isinstance(objective, Task) and objective.name != "contrast":
        found["predict"] = predicted(model, objective, TEXTS, None)
        if takes_pairs(objective, family):
            found["pairs"] = predicted(model, objective, TEXTS, PAIRS)
    elif objective is None or objective.name == "contrast":
        task: Any = objective or parse_objective("contrast").objectives[0]
        head = task.head(model.backbone) if objective is None else model.root.heads["contrast"]
        rows: dict[int, Any] = {}
        for batch in text_batches(model, TEXTS):
            rows |= zip(batch.rows.tolist(), task.outputs(head, model.backbone, batch).tolist(), strict=False)
        found["embed"] = [rows[row] for row in range(len(TEXTS))]
    elif objective.name == "mlm":
        filler = MaskFiller.of(model)
        found["fill"] = [filler.fill(text, 3) for text in MASKED]
    else:
        generator = TextGenerator(model, torch.device("cpu"))
        rows_ = generator.generate(PROMPTS, GenerationConfig(max_new_tokens=8))
        found["generate"] = [row["text"] for row in rows_]
    return found


def predicted(model: Model, task: Task, texts: list[str], pairs: list[str] | None) -> list[Any]:
    """Return pretune's predictions for texts or pairs of texts."""
    part = texts_as_excerpt(texts, pairs)
    examples = task.read(part, {name: name for name in part.first}, answered=False)
    blank = rows_without_tokens(examples, model.require_tokenizer())
    return blank_predictions(Predictor(model, task, examples)(torch.device("cpu")), blank)


@dataclass
class Results:
    """The exported folders, and the answers of pretune and of the exported files."""

    folder: Path
    expected: dict[str, Any]
    found: dict[str, Any]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Results]:
    """Return a function that exports a group of cases, once, and runs all of them in one other process."""
    return cache(lambda group: run_cases(GROUPS[group], tmp_path_factory.mktemp("single")))


def run_cases(cases: list[tuple[str, str]], folder: Path) -> Results:
    """Export models, and return their answers in pretune and in another process without pretune."""
    expected, methods, pairs = {}, {}, {}
    for family, head in cases:
        model, objectives = make_model(family, head)
        name = f"{family}-{head}"
        expected[name] = expected_answers(model, family, objectives)
        (folder / name).mkdir()
        export_single_file(model, folder / name, objectives, "none" if head == "none" else None)
        (methods[name],) = {"predict", "embed", "fill", "generate"} & expected[name].keys()
        pairs[name] = PAIRS if "pairs" in expected[name] else []
    job = {"methods": methods, "texts": TEXTS, "pairs": pairs, "masked": MASKED, "prompts": PROMPTS}
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env={}, check=False)
    assert done.returncode == 0, done.stderr
    return Results(folder, expected, json.loads((folder / "found.json").read_text(encoding="utf-8")))


def assert_close(found: Any, expected: Any) -> None:
    """Raise an error if two nested values differ by more than 1e-5."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_close(found[key], expected[key])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            assert_close(*pair)
    elif isinstance(expected, float):
        assert math.isclose(found, expected, rel_tol=1e-4, abs_tol=1e-5), (found, expected)
    else:
        assert found == expected


@pytest.mark.not_fast
@pytest.mark.parametrize(("group", "family", "head"), CASES)
def test_exported_files_give_the_answers_of_pretune(
    group: int, family: str, head: str, results: Callable[[int], Results]
) -> None:
    found, expected = (table[f"{family}-{head}"] for table in (results(group).found, results(group).expected))
    if "sampled" in found:
        likeliest, *drawn = found.pop("sampled")
        assert likeliest == found["generate"]
        assert drawn[0] == drawn[1]  # the same seed
    assert_close(found, json.loads(json.dumps(expected)))


@pytest.mark.parametrize(("group", "family", "head"), CASES)
def test_exported_files_are_short_and_import_little(
    group: int, family: str, head: str, results: Callable[[int], Results]
) -> None:
    file = results(group).folder / f"{family}-{head}" / "model.py"
    source = file.read_text(encoding="utf-8")
    assert source.count("\n") < 620
    assert str(file.parent) not in source
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(source))
        for name in (
            [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else []
        )
    }
    assert imported - sys.stdlib_module_names == {"torch", "tokenizers"}


@pytest.mark.parametrize("group", [0, pytest.param(1, marks=pytest.mark.end_to_end)])
def test_exported_files_pass_ruff(group: int, results: Callable[[int], Results]) -> None:
    files = [str(file) for file in results(group).folder.glob("*/model.py")]
    assert len(files) == len(GROUPS[group])
    ruff = Path(sys.executable).with_name("ruff")
    checked = subprocess.run(
        [ruff, "check", "--isolated", "--select", "E4,E7,E9,F,I", *files], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout
    formatted = subprocess.run(
        [ruff, "format", "--isolated", "--line-length", "120", "--check", *files], capture_output=True
    )
    assert formatted.returncode == 0


def test_every_supported_family_is_tested() -> None:
    assert QUICK.keys() | LONG.keys() == set(FAMILIES)


@pytest.mark.not_fast
def test_the_verb_writes_a_folder_that_runs_on_the_command_line(tmp_path: Path) -> None:
    model = tiny("bert-tiny", small_tokenizer("wordpiece"), tmp_path / "bert", "mlm")
    facts = pt.export(model, out=tmp_path / "out", format="single-file", license="cc-by-4.0").facts
    assert facts["files"] == ["README.md", "model.py", "model.safetensors", "tokenizer.json"]
    assert facts["lines"] < 500
    assert "cc-by-4.0" in (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    with pytest.raises(PretuneError, match="not empty"):
        pt.export(model, out=tmp_path / "out", format="single-file")
    done = subprocess.run([sys.executable, tmp_path / "out" / "model.py", "the [MASK]"], capture_output=True, text=True, check=True)  # fmt: skip
    assert_close(json.loads(done.stdout), MaskFiller.load(model).fill("the [MASK]"))


def test_threshold_of_two_classes_is_exported(tmp_path: Path) -> None:
    texts = ["good stone", "bad water"]
    for threshold in (0.0, 1.0):
        folder = tmp_path / str(threshold)
        shutil.copytree(trained(), folder)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config["pretune"]["objective"] = f"classify(threshold={threshold})"
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        pt.export(folder, out=folder / "out", format="single-file")
        command = [sys.executable, folder / "out" / "model.py", *texts]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found = [json.loads(line) for line in done.stdout.splitlines()]
        assert_close(found, pt.Run(folder).predict(texts))
        assert {row["label"] for row in found} == ({"yes"} if threshold == 0 else {"no"})


def test_other_families_are_refused_with_a_list(tmp_path: Path) -> None:
    model = tiny("t5-tiny", small_tokenizer("wordpiece"), tmp_path / "t5", "autoencode")
    with pytest.raises(
        PretuneError,
        match=r"^t5 models cannot be written as a single file, only albert, bert, .*export the model in another format",
    ):
        pt.export(model, out=tmp_path / "out", format="single-file")


def test_heads_that_are_missing_or_not_supported_are_refused(tmp_path: Path) -> None:
    model, objectives = make_model("bert", "answer")
    with pytest.raises(PretuneError, match=r"the head 'answer' cannot .* only classify, regress, tag"):
        export_single_file(model, tmp_path, objectives)
    with pytest.raises(PretuneError, match=r"--head mlm: the model has no such head; its heads are: answer"):
        export_single_file(model, tmp_path, objectives, "mlm")
    assert not list(tmp_path.iterdir())


@pytest.mark.not_fast
@pytest.mark.parametrize(
    ("backend", "message"), [("torch", "quantized models cannot"), ("onnx", "an ONNX graph cannot")]
)
def test_quantized_models_are_refused(backend: Any, message: str, tmp_path: Path) -> None:
    model = tiny("bert-tiny", small_tokenizer("wordpiece"), tmp_path / "bert", "mlm")
    pt.quantize(model, out=tmp_path / backend, backend=backend)
    with pytest.raises(PretuneError, match=f"{message} be written as a single file"):
        pt.export(tmp_path / backend, out=tmp_path / "out", format="single-file")


def test_pruned_models_are_exported(tmp_path: Path) -> None:
    model, objectives = make_model("bert", CLASSIFY)
    model.backbone.layers[0].attention.part.keep_units([0, 2])
    model.backbone.layers[1].feed_forward.part.keep_units(range(20))
    export_single_file(model, tmp_path, objectives)  # which compares its outputs with those of the model
    assert "heads=2" in (tmp_path / "model.py").read_text(encoding="utf-8")


def test_heads_on_chosen_layers_and_bags_of_words_are_refused(tmp_path: Path) -> None:
    from pretune.objectives.tasks.bag_of_words import BagOfWords
    from tests.support.fuzz_models import tiny_model

    for objective, bag, message in [
        ("classify on layers(1)", None, "uses the outputs of selected layers"),
        ("classify", BagOfWords({}, {}, np.zeros((0, 2)), np.zeros(2), "classes"), "bag of words"),
    ]:
        model = tiny_model("bert", objective, labels=("a", "b"))
        model.bag_of_words, model.tokenizer = bag, small_tokenizer("wordpiece")
        with pytest.raises(PretuneError, match=message):
            export_single_file(model, tmp_path, parse_objective(objective, labels=("a", "b")).objectives)
