"""Tests that every option of every verb is used, or gives an error that names it if it does not apply."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pretune as pt
from pretune import PretuneError
from pretune.cli import VERBS
from pretune.compression import distillation, pruning_job, quantization
from pretune.runtime.recipe import find_section, parameter_types
from pretune.training import recipe_sections
from pretune.training.jobs import finetuning, pretraining_settings
from pretune.training.recipe_sections import (
    BackTranslation,
    Batching,
    Budget,
    Monitoring,
    Optimizer,
    Schedule,
    resolve_section,
)
from pretune.verbs import options
from pretune.verbs.verb import only, option_spelling, parse_parameters, set_options, split_docstring, verb
from tests.support.cli import run_command
from tests.support.one_word_task import start, trained

# Options that apply in every mode of their verb. A new option belongs either here or in an `only` of its verb.
ALWAYS = {
    "quickstart": "model labels_per_class num_seeds epochs effort seconds out",
    "tokenizer train": "corpus kind vocab_size out extra_ids languages encoding_errors max_distinct_words",
    "tokenizer inspect": "tokenizer texts",
    "histories": "files out user_column item_column time_column min_items",
    "convert": "suite data out tasks allow_incomplete",
    "prepare": "corpus tokenizer out language span_field encoding_errors processes executor clean keep_language near_duplicates decontaminate",
    "phrases": "store out max_phrases min_count min_pmi max_tokens",
    "pretrain": "model data out objective budget scale_to optimizer schedule batch monitor callbacks seed deterministic resume device word_vectors",
    "adapt": "model data out objective budget optimizer schedule batch monitor callbacks seed deterministic resume device ignore_mismatched",
    "label": "inputs out labels model batch_size to answers seed",
    "finetune": "model train out dev text pair label columns language drop_invalid objective threshold class_weight strategy budget optimizer schedule batch monitor callbacks shots "
    "seed num_seeds report deterministic resume device word_vectors",
    "tune": "model train dev out num_trials max_seconds text pair label columns drop_invalid objective threshold class_weight metric strategy epochs optimizer schedule batch "
    "monitor seed deterministic device devices",
    "ulmfit": "model train out backward_model dev unlabeled text label vocab_size lm_epochs epochs max_length batch_size lr dropout language seed num_seeds "
    "device",
    "evaluate": "model data suite device ignore_mismatched",
    "compare": "first second",
    "study": "out suggest device devices",
    "probe": "model suite data tasks layers pooling probe controls mdl num_seeds max_examples cache seed ignore_mismatched out",
    "contamination": "store suite data tasks ngram_size",
    "attention": "model inputs tokens importance out ignore_mismatched",
    "similarity": "model inputs other method level max_texts out ignore_mismatched",
    "project": "model inputs method layer pooling out ignore_mismatched",
    "compress": "model target train dev out pipelines text pair label columns",
    "distill": "teacher student out train unlabeled data match_layers budget optimizer schedule batch monitor seed device",
    "prune": "model out drop_layers heads ffn_units sparsity vocabulary_texts dev budget device ignore_mismatched",
    "quantize": "model out method dev ignore_mismatched",
    "predict": "model inputs task language out processes executor ignore_mismatched",
    "ask": "model inputs template answers examples out ignore_mismatched",
    "recommend": "model histories top_k include_seen evaluate max_length user_column item_column time_column out ignore_mismatched",
    "fill": "model texts mask_rate ignore_mismatched",
    "embed": "model inputs pooling layer prompt prompt_name language engine out ignore_mismatched",
    "search": "model inputs query top_k pooling ignore_mismatched",
    "generate": "model prompts temperature top_k top_p num_beams repetition_penalty no_repeat_ngram_size stop choices stream device ignore_mismatched",
    "translate": "model inputs references num_beams max_new_tokens plot out device ignore_mismatched",
    "neighbors": "model word context corpus top_k all_layers max_words language ignore_mismatched",
    "vectors train": "corpus out kind vector_size window min_count epochs lowercase language encoding_errors seed",
    "import": "source out",
    "serve": "models host port token_file allowed_hosts cors_origins timeout max_batch_size max_delay max_queue max_texts max_characters max_body threads engine reload_every",
    "export": "model out format head license new_tokenizer max_positions ignore_mismatched",
    "show": "what",
    "bench": "model inputs seconds max_texts threads ignore_mismatched",
    "roofline": "device",
    "doctor": "",
}  # fmt: skip
# Keys of sections that apply to every kind of training, optimizer and schedule.
ALWAYS_KEYS = {
    Budget: "steps tokens flops seconds",
    Optimizer: "name lr weight_decay max_grad_norm layer_decay head_lr_factor ema_decay average_fraction reference_batch_size",
    Schedule: "kind warmup_ratio dropout_until",
    Batching: "max_length gradient_checkpointing bpe_dropout unigram_alpha",
    Monitoring: "log_every log_to save_every save_total_limit log_layer_grad_norms spike_threshold",
}
SECTIONS = {"batch": Batching, "monitor": Monitoring}


def names(rule: Any) -> set[str]:
    return {name for name in rule.options if "." not in name}


@pytest.mark.parametrize("name", VERBS)
def test_every_option_declares_where_it_applies(name: str) -> None:
    function: Any = VERBS[name]
    always, sometimes = set(ALWAYS[name].split()), {option for rule in function.rules for option in names(rule)}
    parameters = set(inspect.signature(function).parameters)
    unknown = parameters - always - sometimes
    assert not unknown, f"declare where {unknown} of `{name}` apply: in ALWAYS, or with only(…) in the verb's decorator"
    assert always | sometimes == parameters and not always & sometimes
    assert set(function.outputs) == {"out", "plot", "to"} & parameters, "an output is checked before anything is read"


def test_every_section_key_declares_where_it_applies() -> None:
    for section, always in ALWAYS_KEYS.items():
        _, kinds = recipe_sections.BY_KIND.get(section, ("", {}))
        needs, text, rows = (
            keys.get(section, ()) for keys in (recipe_sections.NEEDS, recipe_sections.ON_TEXT, recipe_sections.ON_ROWS)
        )
        assert {*always.split(), *kinds, *needs, *text, *rows} == {key.name for key in fields(section)}  # type: ignore[arg-type]
        for name in {name for where in kinds.values() for name in where}:  # these kinds exist
            assert resolve_section(section, section(name))  # type: ignore[type-var]


def test_verbs_accept_the_keys_of_their_kind_of_training() -> None:
    text = {f"{name}.{key}" for name, section in SECTIONS.items() for key in recipe_sections.ON_TEXT[section]}
    rows = {f"{name}.{key}" for name, section in SECTIONS.items() for key in recipe_sections.ON_ROWS[section]}
    for name, function in VERBS.items():
        if not any(find_section(hint) is Batching for hint in parameter_types(function).values()):
            continue
        refused = {option for rule in function.rules for option in rule.options if "." in option}  # type: ignore[attr-defined]
        assert refused == {"pretrain": rows, "adapt": rows, "distill": text | rows}.get(name, text), name


def test_options_are_described_once() -> None:
    """A text that two verbs would repeat belongs in verbs/options.py; `help` in Python shows it nevertheless."""
    shared = {hint.__metadata__[0] for hint in vars(options).values() if hasattr(hint, "__metadata__")}
    described: dict[tuple[str, str], str] = {}
    used = set()
    for name, function in VERBS.items():
        own = parse_parameters(split_docstring(function.__wrapped__)[1].get("Parameters", ""))  # type: ignore[attr-defined]
        whole = parse_parameters(split_docstring(function)[1].get("Parameters", ""))
        assert list(whole) == list(inspect.signature(function).parameters) and all(whole.values()), name
        assert own.items() <= whole.items() and not shared & set(own.values()), name
        for option in own.items():
            assert described.setdefault(option, name) == name, (
                f"{option[0]} is described by {described[option]} and {name}"
            )
        used |= set(whole.values())
    assert not shared - used, "a shared option that no verb has"


# -- options outside their mode --------------------------------------------------------------------------------------------


class Places:
    """Files, a store, and models for the conditions of options to inspect."""

    def __init__(self, folder: Path) -> None:
        self.out, self.rows, self.text = folder / "never", start() / "train.csv", start() / "text.txt"
        self.model, self.task, self.store = start() / "start", trained(), folder / "store"
        self.store.mkdir()
        (self.store / "manifest.json").write_text("{}")
        self.regression, self.mbart = (
            self.like(folder / "regression", pretune={"objective": "regress"}),
            folder / "mbart",
        )
        self.like(self.mbart, model_type="mbart")

    @staticmethod
    def like(folder: Path, **changes: Any) -> Path:
        """Make a model folder with a changed config.json."""
        folder.mkdir()
        config = json.loads((trained() / "config.json").read_text())
        if "model_type" in changes:
            config = {}
        (folder / "config.json").write_text(json.dumps({**config, **changes}))
        return folder


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    return Places(tmp_path_factory.mktemp("places"))


# Verb → options → (a call in which they do not apply, one in which they do). {x} stands for places.x.
TRAINED = dict.fromkeys(("epochs", "seed", "device"), 1) | {"device": "cpu", "budget": Budget(seconds=1)}
SECTION = {
    "optimizer": Optimizer(lr=1e-3),
    "schedule": Schedule(kind="linear"),
    "batch": Batching(max_length=8),
    "monitor": Monitoring(log_every=1),
}
COLUMNS = {"text": "a", "pair": "b", "label": "c", "columns": {"group": "d"}}
FINETUNE = {"model": "{model}", "train": "{rows}", "out": "{out}"}
DISTILL = {"teacher": "{task}", "student": "layers=2", "out": "{out}"}
OF_TASK, OF_TEXT = {**DISTILL, "train": "{rows}"}, {**DISTILL, "data": "{text}"}
PRUNE, QUANTIZE = {"model": "{task}", "out": "{out}", "heads": 0.5}, {"model": "{task}", "out": "{out}"}
EVALUATE = {"model": "{task}", "data": "{text}"}
SUITE = {**EVALUATE, "suite": "glue", "out": "{out}"}
TUNED = {"keep_models": True, "strategy": "full", "from_scratch": True, "deterministic": True, **SECTION}
COMPRESS = {"model": "{task}", "target": "size=1MB", "train": "{rows}", "dev": "{rows}", "out": "{out}"}
PREDICT, GENERATE = {"model": "{task}", "inputs": ["a text"]}, {"model": "{model}", "prompts": ["a"]}
RECOMMEND = {"model": "{model}", "histories": "{rows}"}
STUDY, SUGGEST = {"file": "quick", "out": "{out}"}, {"suggest": True, "out": "{out}"}
CASES: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ("study", {"data": "{text}", "labels": "{rows}", "dev": "{rows}", "text": "a", "label": "b", "budget": "10s", "language": "ru"}, STUDY, SUGGEST),
    ("study", {"file": "quick", "dry_run": True, "retry_failed": True, "keep_models": True}, SUGGEST, {"out": "{out}"}),
    ("tokenizer train", {"lowercase": True}, {"corpus": "{text}", "kind": "items"}, {"corpus": "{text}"}),
    ("tokenizer train", {"max_occurrences": 5}, {"corpus": "{text}", "kind": "words"}, {"corpus": "{text}"}),
    ("tokenizer train", {"pair_score": "likelihood"}, {"corpus": "{text}", "kind": "bpe"}, {"corpus": "{text}"}),
    ("tokenizer train", {"split_by": "line"}, {"corpus": "{rows}"}, {"corpus": "{text}"}),
    ("tokenizer train", {"text_field": "text"}, {"corpus": "{text}"}, {"corpus": "{rows}"}),
    ("prepare", {"decontaminate_data": "x"}, {"corpus": "{text}", "tokenizer": "t", "out": "{out}"}, {"corpus": "{text}", "tokenizer": "t", "out": "{out}", "decontaminate": ["glue"]}),
    ("prepare", {"split_by": "line"}, {"corpus": "{rows}", "tokenizer": "t", "out": "{out}"}, {"corpus": "{text}", "tokenizer": "t", "out": "{out}"}),
    ("prepare", {"text_field": "text"}, {"corpus": "{text}", "tokenizer": "t", "out": "{out}"}, {"corpus": "{rows}", "tokenizer": "t", "out": "{out}"}),
    ("pretrain", {"batch": Batching(size=2), "monitor": Monitoring(patience=1)}, {"model": "bert-tiny", "out": "{out}"}, {}),
    ("pretrain", {"language": "ru"}, {"model": "bert-tiny", "data": "{store}", "out": "{out}"}, {"model": "bert-tiny", "data": "{text}", "out": "{out}"}),
    ("pretrain", {"language": "ru"}, {"model": "bert-tiny", "data": "{rows}", "objective": "tlm", "out": "{out}"}, {"model": "bert-tiny", "data": "{rows}", "out": "{out}"}),
    ("pretrain", {"tokenizer": "t"}, {"model": "bert-tiny", "data": "{store}", "out": "{out}"}, {"model": "bert-tiny", "data": "{text}", "out": "{out}"}),
    ("pretrain", {"init_from": "x"}, {"model": "{model}", "data": "{text}", "out": "{out}"}, {"model": "bert-tiny", "out": "{out}"}),
    ("pretrain", {"ignore_mismatched": True}, {"model": "bert-tiny", "out": "{out}"}, {"model": "{model}", "out": "{out}"}),
    ("pretrain", {"parallel": "fsdp", "reduce_dtype": "bf16"}, {"model": "bert-tiny", "out": "{out}"}, {}),
    ("adapt", {"batch": Batching(size=2), "monitor": Monitoring(patience=1)}, {"model": "{model}", "data": "{text}", "out": "{out}"}, {}),
    ("adapt", {"language": "ru"}, {"model": "{model}", "data": "{store}", "out": "{out}"}, {"model": "{model}", "data": "{text}", "out": "{out}"}),
    ("pretrain", {"split_by": "line", "text_field": "text"}, {"model": "bert-tiny", "data": "{rows}", "objective": "tlm", "out": "{out}"}, {}),
    ("pretrain", {"split_by": "line"}, {"model": "bert-tiny", "data": "{rows}", "out": "{out}"}, {"model": "bert-tiny", "data": "{text}", "out": "{out}"}),
    ("pretrain", {"text_field": "text"}, {"model": "bert-tiny", "data": "{text}", "out": "{out}"}, {"model": "bert-tiny", "data": "{rows}", "out": "{out}"}),
    ("pretrain", {"encoding_errors": "replace"}, {"model": "bert-tiny", "data": "{store}", "out": "{out}"}, {"model": "bert-tiny", "data": "{rows}", "objective": "tlm", "out": "{out}"}),
    ("adapt", {"split_by": "line", "encoding_errors": "replace"}, {"model": "{model}", "data": "{store}", "out": "{out}"}, {"model": "{model}", "data": "{text}", "out": "{out}"}),
    ("adapt", {"text_field": "text"}, {"model": "{model}", "data": "{text}", "out": "{out}"}, {"model": "{model}", "data": "{rows}", "out": "{out}"}),
    ("ulmfit", {"split_by": "line", "encoding_errors": "replace"}, {"model": "{model}", "train": "{rows}", "out": "{out}"}, {"model": "{model}", "train": "{rows}", "unlabeled": ["{text}"], "out": "{out}"}),
    ("ulmfit", {"text_field": "text"}, {"model": "{model}", "train": "{rows}", "unlabeled": ["{text}"], "out": "{out}"}, {"model": "{model}", "train": "{rows}", "unlabeled": ["{rows}"], "out": "{out}"}),
    ("finetune", {"batch": Batching(tokens=2, microbatch_tokens=2, length_schedule=((1.0, 8),), objective_schedule=((1.0, "mlm"),), size_warmup=(0.5, 0.5), language_alpha=0.5)}, FINETUNE, {}),
    ("finetune", {"monitor": Monitoring(held_out_fraction=0.1, max_eval_batches=1)}, FINETUNE, {}),
    ("finetune", {"epochs": 3.0}, {**FINETUNE, "budget": Budget(steps=1)}, FINETUNE),
    ("finetune", {"tokenizer": "t"}, FINETUNE, {**FINETUNE, "model": "bert-tiny"}),
    ("finetune", {"ignore_mismatched": True, "from_scratch": True, "dropout": {"x": 0.1}}, {**FINETUNE, "model": "bert-tiny"}, FINETUNE),
    ("finetune", {"task_sampling": "uniform"}, FINETUNE, {**FINETUNE, "train": ["a=x.csv", "b=y.csv"]}),
    ("finetune", {"unlabeled": "x.txt"}, {**FINETUNE, "train": ["a=x.csv", "b=y.csv"]}, FINETUNE),
    ("finetune", {"distill_temperature": 2.0, "teacher": "x"}, FINETUNE, {**FINETUNE, "unlabeled": "x.txt"}),
    ("finetune", {"confidence_threshold": 0.9}, FINETUNE, {**FINETUNE, "unlabeled": "x.txt"}),
    ("finetune", {"confidence_threshold": 0.9}, {**FINETUNE, "unlabeled": "x.txt", "distill_temperature": 2.0}, {**FINETUNE, "unlabeled": "x.txt"}),
    ("finetune", {"learning_curve": [5], "scratch_baseline": True}, {**FINETUNE, "unlabeled": "x.txt"}, FINETUNE),
    ("finetune", {"metric": "f1", "metrics": ["mcc"]}, {**FINETUNE, "train": ["a=x.csv", "b=y.csv"]}, FINETUNE),
    ("finetune", {"devices": 2}, {**FINETUNE, "num_seeds": 1}, FINETUNE),
    ("finetune", {"effort": "quick"}, {**FINETUNE, "strategy": "full"}, FINETUNE),
    ("finetune", {"effort": "quick"}, {**FINETUNE, "budget": Budget(steps=1)}, FINETUNE),
    ("tune", {"batch": Batching(tokens=2)}, {**FINETUNE, "dev": "{rows}"}, {}),
    ("tune", {"tokenizer": "t"}, {**FINETUNE, "dev": "{rows}"}, {**FINETUNE, "dev": "{rows}", "model": "bert-tiny"}),
    ("tune", {"ignore_mismatched": True}, {**FINETUNE, "dev": "{rows}", "model": "bert-tiny"}, {**FINETUNE, "dev": "{rows}"}),
    ("evaluate", {"tasks": ["rte"], "num_seeds": 3, "seed": 1, "shots": 1, "out": "{out}", "allow_incomplete": True, "devices": 2}, EVALUATE, SUITE),
    ("evaluate", {**TUNED, "epochs": 3.0, "budget": Budget(steps=1)}, EVALUATE, {}),
    ("evaluate", {"text": "a", "pair": "b", "max_length": 5, "stride": 2, "limit": 1, "split_by": "line", "encoding_errors": "replace"}, SUITE, EVALUATE),
    ("evaluate", {"split_by": "line"}, {**EVALUATE, "data": "{rows}"}, EVALUATE),
    ("evaluate", {**TUNED, "epochs": 3.0, "budget": Budget(steps=1)}, {**SUITE, "shots": 1}, {}),
    ("evaluate", {"num_seeds": 2, "seed": 1}, {**SUITE, "shots": 0}, {**SUITE, "shots": 1}),
    ("evaluate", {"language": "de"}, SUITE, {**SUITE, "suite": "xglue"}),
    ("evaluate", {"epochs": 2.0}, {**SUITE, "budget": Budget(steps=1)}, SUITE),
    ("evaluate", {"batch": Batching(tokens=2)}, SUITE, {}),
    ("compress", {**SECTION, **TRAINED}, {**COMPRESS, "pipelines": ["int8"]}, {}),
    ("compress", {"epochs": 2.0}, {**COMPRESS, "budget": Budget(steps=1)}, COMPRESS),
    ("compress", {"batch": Batching(tokens=2)}, COMPRESS, {}),
    ("distill", {**COLUMNS, "dev": "x", "alpha": 0.5, "loss": "kl", "num_augmentations": 1, "epochs": 3.0, "processes": 2, "executor": "local"}, OF_TEXT, OF_TASK),
    ("distill", {"split_by": "line", "encoding_errors": "replace"}, OF_TASK, OF_TEXT),
    ("distill", {"text_field": "text"}, OF_TEXT, {**DISTILL, "data": "{rows}"}),
    ("distill", {"batch": Batching(size=2), "monitor": Monitoring(patience=1)}, OF_TEXT, OF_TASK),
    ("distill", {"loss_weights": {"cosine": 0}, "generate_tokens": 5}, OF_TASK, OF_TEXT),
    ("distill", {"batch": Batching(tokens=2), "monitor": Monitoring(max_eval_batches=1)}, OF_TASK, OF_TEXT),
    ("distill", {"alpha": 0.5, "baseline": True}, {**DISTILL, "unlabeled": "{text}"}, OF_TASK),
    ("distill", {"temperature": 2.0, "loss": "kl", "processes": 2, "executor": "ray"}, {**OF_TASK, "alpha": 0.0}, {**OF_TASK, "alpha": 0.0, "num_augmentations": 1}),
    ("distill", {"temperature": 2.0, "loss": "kl"}, {**OF_TASK, "teacher": "{regression}"}, OF_TASK),
    ("distill", {"epochs": 2.0}, {**OF_TASK, "budget": Budget(steps=1)}, OF_TASK),
    ("prune", {"baseline": True, **SECTION}, PRUNE, {**PRUNE, "epochs": 1.0}),
    ("prune", {"train": "{rows}"}, {**PRUNE, "heads": 0.0, "sparsity": 0.5}, PRUNE),
    ("prune", COLUMNS, PRUNE, {**PRUNE, "dev": "{rows}"}),
    ("prune", {"text_field": "text", "encoding_errors": "replace"}, PRUNE, {**PRUNE, "vocabulary_texts": "{rows}"}),
    ("prune", {"seed": 1}, PRUNE, {**PRUNE, "drop_layers": "random(1)"}),
    ("prune", {"epochs": 1.0}, {**PRUNE, "budget": Budget(steps=1)}, PRUNE),
    ("prune", {"batch": Batching(tokens=2)}, {**PRUNE, "epochs": 1.0}, {}),
    ("quantize", {"bits": 8}, QUANTIZE, {**QUANTIZE, "method": "weight-only"}),
    ("quantize", {"backend": "torch"}, {**QUANTIZE, "method": "bf16"}, QUANTIZE),
    ("quantize", {"per_channel": False}, {**QUANTIZE, "backend": "torch"}, QUANTIZE),
    ("quantize", {"train": "{rows}"}, QUANTIZE, {**QUANTIZE, "method": "static"}),
    ("quantize", {**SECTION, **TRAINED}, {**QUANTIZE, "method": "static"}, {}),
    ("quantize", COLUMNS, QUANTIZE, {**QUANTIZE, "dev": "{rows}"}),
    ("quantize", {"epochs": 1.0}, {**QUANTIZE, "method": "qat", "train": "{rows}", "budget": Budget(steps=1)}, {**QUANTIZE, "method": "qat", "train": "{rows}"}),
    ("quantize", SECTION, {**QUANTIZE, "method": "qat"}, {**QUANTIZE, "method": "qat", "train": "{rows}"}),
    ("quantize", {"batch": Batching(tokens=2)}, {**QUANTIZE, "method": "qat"}, {}),
    ("predict", {"text": "a", "pair": "b", "columns": {"group": "d"}, "score": True}, PREDICT, {**PREDICT, "inputs": ["{rows}"]}),
    ("predict", {"label": "a"}, {**PREDICT, "inputs": ["{rows}"]}, {**PREDICT, "inputs": ["{rows}"], "score": True}),
    ("predict", {"probabilities": True}, {**PREDICT, "model": "{regression}"}, PREDICT),
    ("predict", {"threshold": 0.3}, {**PREDICT, "model": "{regression}"}, PREDICT),
    ("predict", {"engine": "torch"}, {**PREDICT, "processes": 2}, PREDICT),
    ("predict", {"safe_csv": True}, {**PREDICT, "out": "{out}.jsonl"}, {**PREDICT, "out": "{out}.csv"}),
    ("ask", {"safe_csv": True}, {**PREDICT, "out": "{out}.jsonl"}, {**PREDICT, "out": "{out}.csv"}),
    ("ask", {"text": "a", "pair": "b", "label": "c"}, PREDICT, {**PREDICT, "inputs": ["{rows}"]}),
    ("ask", {"shots": 1, "seed": 1}, PREDICT, {**PREDICT, "examples": "{rows}"}),
    ("ask", {"calibrate": True}, PREDICT, {**PREDICT, "answers": ["a", "b"]}),
    ("ask", {"max_new_tokens": 20}, {**PREDICT, "answers": ["a", "b"]}, PREDICT),
    ("recommend", {"titles": "x"}, {**RECOMMEND, "evaluate": True}, RECOMMEND),
    ("recommend", {"safe_csv": True}, {**RECOMMEND, "out": "{out}.jsonl"}, {**RECOMMEND, "out": "{out}.csv"}),
    ("recommend", {"num_negatives": 5, "seed": 1}, RECOMMEND, {**RECOMMEND, "evaluate": True}),
    ("fill", {"top_k": 5}, {"model": "{model}", "texts": ["a"], "mask_rate": 0.5}, {"model": "{model}", "texts": ["a"]}),
    ("fill", {"seed": 1}, {"model": "{model}", "texts": ["a"]}, {"model": "{model}", "texts": ["a"], "mask_rate": 0.5}),
    ("embed", {"text": "a"}, PREDICT, {**PREDICT, "inputs": ["{rows}"]}),
    ("embed", {"text": "a"}, {**PREDICT, "inputs": ["{text}"]}, {**PREDICT, "inputs": ["{text}", "{rows}"]}),
    ("search", {"text": "a"}, {**PREDICT, "inputs": ["{text}"], "query": "a"}, {**PREDICT, "inputs": ["{rows}"], "query": "a"}),
    ("label", {"text": "a"}, {"inputs": ["{text}"], "out": "{out}.csv"}, {"inputs": ["{rows}"], "out": "{out}.csv"}),
    ("generate", {"seed": 1}, GENERATE, {**GENERATE, "top_k": 5}),
    ("generate", {"length_penalty": 0.5}, GENERATE, {**GENERATE, "num_beams": 2}),
    ("generate", {"max_new_tokens": 50}, {**GENERATE, "choices": ["a", "b"]}, GENERATE),
    ("generate", {"score": True}, {**GENERATE, "choices": ["a", "b"]}, GENERATE),
    ("generate", {"draft": "{model}"}, {**GENERATE, "num_beams": 2}, GENERATE),
    ("generate", {"language_pair": "en-ro"}, GENERATE, {**GENERATE, "model": "{mbart}"}),
    ("translate", {"text": "a"}, PREDICT, {**PREDICT, "inputs": ["{rows}"]}),
    ("translate", {"length_penalty": 0.5}, {**PREDICT, "num_beams": 1}, PREDICT),
    ("translate", {"alignments": True}, {**PREDICT, "out": "{out}"}, PREDICT),
    ("attention", {"text": "a"}, PREDICT, {**PREDICT, "importance": "{rows}"}),
    ("attention", {"text": "a"}, {**PREDICT, "inputs": ["{text}"]}, {**PREDICT, "inputs": ["{rows}"]}),
    ("attention", {"head": ["1.1"], "target": "b"}, PREDICT, {**PREDICT, "out": "{out}"}),
    ("attention", {"label": "a"}, PREDICT, {**PREDICT, "importance": "{rows}"}),
    ("similarity", {"text": "a"}, PREDICT, {**PREDICT, "inputs": ["{rows}"]}),
    ("project", {"text": "a", "color": "label"}, {**PREDICT, "inputs": ["{text}"]}, {**PREDICT, "inputs": ["{rows}"]}),
    ("project", {"seed": 1}, PREDICT, {**PREDICT, "method": "tsne"}),
    ("neighbors", {"layer": 1}, {"model": "{model}", "word": "a", "all_layers": True}, {"model": "{model}", "word": "a"}),
    ("neighbors", {"occurrences": 3}, {"model": "{model}", "word": "a", "context": "a b"}, {"model": "{model}", "word": "a"}),
    ("neighbors", {"split_by": "line", "encoding_errors": "replace"}, {"model": "{model}", "word": "a"}, {"model": "{model}", "word": "a", "corpus": "{text}"}),
    ("neighbors", {"text_field": "text"}, {"model": "{model}", "word": "a", "corpus": "{text}"}, {"model": "{model}", "word": "a", "corpus": "{rows}"}),
    ("vectors train", {"split_by": "line"}, {"corpus": "{rows}", "out": "{out}"}, {"corpus": "{text}", "out": "{out}"}),
    ("vectors train", {"text_field": "text"}, {"corpus": "{text}", "out": "{out}"}, {"corpus": "{rows}", "out": "{out}"}),
    ("vectors train", {"negative": 3, "workers": 2}, {"corpus": "{text}", "out": "{out}", "kind": "glove"}, {"corpus": "{text}", "out": "{out}"}),
    ("vectors train", {"x_max": 9.0}, {"corpus": "{text}", "out": "{out}"}, {"corpus": "{text}", "out": "{out}", "kind": "glove"}),
    ("import", {"vocab_file": "x"}, {"source": "{rows}", "out": "{out}"}, {"source": "{store}", "out": "{out}"}),
    ("import", {"max_words": 5, "expand": "x"}, {"source": "{store}", "out": "{out}"}, {"source": "{rows}", "out": "{out}"}),
    ("export", {"dtype": "float32"}, {"model": "{model}", "out": "{out}", "format": "torch"}, {"model": "{model}", "out": "{out}", "format": "ort"}),
    ("export", {"max_shard_size": "1GB"}, {"model": "{model}", "out": "{out}", "format": "onnx"}, {"model": "{model}", "out": "{out}"}),
    ("bench", {"text": "a"}, {**PREDICT, "inputs": ["{text}"]}, {**PREDICT, "inputs": ["{rows}"]}),
    ("export", {"pooling": "mean", "normalize": True, "max_length": 9}, {"model": "{model}", "out": "{out}", "format": "hf"}, {"model": "{model}", "out": "{out}"}),
    ("export", {"position_init": "copy"}, {"model": "{model}", "out": "{out}"}, {"model": "{model}", "out": "{out}", "max_positions": 99}),
    ("show", {"text": "a", "seed": 1}, {"what": "presets"}, {"what": "objectives"}),
    ("show", {"plot": "{out}"}, {"what": "families"}, {"what": "plm"}),
    ("tokenizer train", {"language_alpha": 0.5}, {"corpus": "{text}"}, {"corpus": ["en={text}", "fr={text}"]}),
    ("pretrain", {"back_translation": BackTranslation(model="{model}", texts=("{text}",))}, {"model": "bert-tiny", "data": "{text}", "out": "{out}"}, {"model": "rnnsearch-tiny", "data": ["{text}", "{text}"], "out": "{out}"}),
    ("show", {"memory": True}, {"what": "plm"}, {"what": "bert-tiny"}),
]  # fmt: skip


def fill_in(value: Any, places: Any) -> Any:
    """Return a value with {x} replaced by places.x in all strings."""
    if isinstance(value, dict):
        return {key: fill_in(item, places) for key, item in value.items()}
    if isinstance(value, list):
        return [fill_in(item, places) for item in value]
    return value.format(**vars(places)) if isinstance(value, str) else value


def violated_rules(function: Any, options: dict[str, Any]) -> list[Any]:
    """Return the rules that a call violates."""
    signature = inspect.signature(function)
    call = signature.bind(**options)
    given = list(set_options(signature, call.arguments))
    call.apply_defaults()
    found = []
    for rule in function.rules:
        try:
            rule.check(SimpleNamespace(**call.arguments), given)
        except PretuneError:
            found.append(rule)
    return found


@pytest.mark.not_fast
@pytest.mark.parametrize(("name", "options", "wrong", "right"), CASES, ids=lambda x: x if isinstance(x, str) else "")
def test_option_that_does_not_apply_is_rejected_by_name(
    name: str, options: dict[str, Any], wrong: dict[str, Any], right: dict[str, Any], places: Places
) -> None:
    function: Any = VERBS[name]
    for option, value in fill_in(options, places).items():
        keys = (
            [f"{option}.{key}" for key, x in vars(value).items() if x is not None]
            if hasattr(value, "flat")
            else [option]
        )
        with pytest.raises(PretuneError) as refused:
            function(**{**fill_in(wrong, places), option: value})
        message = str(refused.value)
        assert all(option_spelling(key) in message for key in keys) and " only " in message and "leave" in message, (
            message
        )
        assert not places.out.exists()
        if right:
            assert not [
                rule
                for rule in violated_rules(function, {**fill_in(right, places), option: value})
                if option in names(rule)
            ]


def test_every_rule_is_violated_by_a_case() -> None:
    """A rule that no case violates may be one that no call can violate."""
    for name, function in VERBS.items():
        tried = {option for case, options, *_ in CASES if case == name for option in options}
        assert {option for rule in function.rules for option in names(rule)} <= tried, name  # type: ignore[attr-defined]


def test_options_that_are_off_are_accepted() -> None:
    @verb(only("seed", "names", "flag", "rate", where="with a model", when=lambda o: o.model is not None))
    def sample(
        model: str | None = None, seed: int = 0, names: tuple[str, ...] = (), flag: bool = False, rate: float = 0.5
    ) -> float:
        return rate

    assert sample() == sample(seed=0, names=(), flag=False) == sample(None) == 0.5
    assert sample("m", seed=0, rate=0.5) == 0.5
    for wrong in ({"seed": 1}, {"rate": 0.5}, {"rate": 0.0}, {"flag": True}, {"names": ("a",)}):
        name = next(iter(wrong))
        with pytest.raises(PretuneError, match=rf"^--{name} applies only with a model; leave out --{name}$"):
            sample(**wrong)  # type: ignore[arg-type]
    with pytest.raises(PretuneError, match=r"^--seed and --flag apply only with a model; leave out --seed and --flag$"):
        sample(seed=1, flag=True)


@pytest.mark.not_fast
def test_command_line_rejects_options_at_their_default(tmp_path: Path) -> None:
    """An option that is typed out is an error even if its value is the default."""
    asked = ["distill", "teacher", "--student", "layers=2", "--data", "text.txt", "--out", str(tmp_path / "never")]
    for words in (
        ["--alpha", "0.5"],
        ["--loss", "kl"],
        ["--epochs", "3"],
        ["--num-augmentations", "2"],
        ["--set", "batch.size=4"],
    ):
        refused = run_command(*asked, *words, check=False)
        error = refused.stderr
        assert refused.returncode == 1
        assert "not with --data; leave out " in error and len(error.splitlines()) == 1, error


def test_keys_of_another_optimizer_or_schedule_are_rejected() -> None:
    for given, words in (
        (Optimizer(momentum=0.9), r"optimizer\.momentum applies only to muon, sgd, not to name=adamw"),
        (Optimizer(muon_lr=0.02), r"optimizer\.muon_lr applies only to muon"),
        (Optimizer(name="sgd", betas=(0.9, 0.99)), r"optimizer\.betas .* not to name=sgd"),
        (Optimizer(name="adafactor", eps=1e-8), r"optimizer\.eps .* not to name=adafactor"),
        (Schedule(decay_ratio=0.1), r"schedule\.decay_ratio applies only to warmup-stable-decay, not to kind=linear"),
        (Schedule(kind="constant", min_lr_ratio=0.1), r"schedule\.min_lr_ratio .* not to kind=constant"),
        (Monitoring(on_spike="skip"), r"monitor\.on_spike applies only with monitor\.spike_threshold"),
        (
            Monitoring(held_out_fraction=0.0, eval_every=5),
            r"monitor\.eval_every applies only with monitor\.held_out_fraction",
        ),
        (Batching(max_length=8, length_schedule=((1.0, 8),)), r"batch\.max_length and batch\.length_schedule"),
    ):
        with pytest.raises(PretuneError, match=words):
            resolve_section(type(given), given)  # type: ignore[type-var]
    # Keys of presets that the kind does not use are dropped: recipes contain only what applies.
    assert resolve_section(Optimizer, Optimizer(name="sgd"), {"betas": [0.9, 0.98]}).betas is None
    assert (
        resolve_section(Optimizer, None).muon_lr is None
        and resolve_section(Optimizer, Optimizer(name="muon")).muon_lr == 0.02
    )
    with pytest.raises(PretuneError, match="not to name=sgd"):
        pt.adapt(start() / "start", start() / "text.txt", optimizer=Optimizer(name="sgd", eps=1.0), out="never")


# -- accepted options are used -----------------------------------------------------------------------------------------


@contextmanager
def record_reads(cls: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Record the fields of a job that are read, other than to copy the job or to write its recipe."""
    found: set[str] = set()

    def recorded(self: Any, name: str) -> Any:
        frame = sys._getframe(1)
        callers = {frame.f_code.co_name, frame.f_back.f_code.co_name if frame.f_back else ""}  # or its comprehension
        if frame.f_globals.get("__name__") != "dataclasses" and not callers & {"recipe", "as_recipe"}:
            found.add(name)
        return object.__getattribute__(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(cls, "__getattribute__", recorded)
        yield found


FAST: dict[str, Any] = {"budget": Budget(steps=1), "batch": Batching(max_length=16)}
# Mode → verb, the job that its options become, a call.
MODES: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "distill a task": ("distill", distillation.DistillationJob, {**OF_TASK, "epochs": 0.1, "batch": Batching(max_length=16)}),
    "distill text": ("distill", distillation.DistillationJob, {**OF_TEXT, **FAST, "teacher": "{language}"}),
    "prune": ("prune", pruning_job.PruningJob, PRUNE),
    "prune and train": ("prune", pruning_job.PruningJob, {**PRUNE, **FAST, "train": "{rows}"}),
    "quantize": ("quantize", quantization.QuantizationJob, {**QUANTIZE, "backend": "onnx"}),
    "finetune": ("finetune", finetuning.FinetuningJob, {**FINETUNE, "epochs": 0.1, "report": False, "batch": Batching(max_length=16)}),
    "self-training": ("finetune", finetuning.FinetuningJob, {**FINETUNE, **FAST, "num_seeds": 1, "report": False, "unlabeled": "{text}", "confidence_threshold": 0.1}),
    "several tasks": ("finetune", finetuning.FinetuningJob, {**FINETUNE, **FAST, "num_seeds": 1, "report": False, "train": ["a={rows}", "b={rows}"]}),
    "pretrain": ("pretrain", pretraining_settings.PretrainingJob, {"model": "bert-tiny", "data": "{text}", "out": "{out}", "objective": "mlm", **FAST}),
}  # fmt: skip
BY_THE_VERB = {"prune": {"vocabulary_texts"}, "finetune": {"unlabeled"}}  # the verb passes them on in another form


@pytest.mark.not_fast
@pytest.mark.usefixtures("briefly")
@pytest.mark.parametrize("mode", MODES)
def test_accepted_option_is_used(mode: str, places: Places, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, job, call = MODES[mode]
    if name == "quantize":
        pytest.importorskip("onnxruntime")
    function: Any = VERBS[name]
    place = SimpleNamespace(**vars(places) | {"out": tmp_path / "run"})
    if mode == "distill text":
        pt.adapt(
            places.model, places.text, out=tmp_path / "language", budget=Budget(steps=1), batch=Batching(tokens=256)
        )
        place.language = tmp_path / "language"
    options = fill_in(call, place)
    with record_reads(job, monkeypatch) as found:
        function(**options)
    signature = inspect.signature(function)
    bound = signature.bind(**options)
    bound.apply_defaults()
    asked = SimpleNamespace(**bound.arguments)
    refused = {option for rule in function.rules if not rule.when(asked) for option in names(rule)}
    wanted = ({key.name for key in fields(job)} & set(signature.parameters)) - refused - BY_THE_VERB.get(name, set())
    assert not wanted - found, f"{mode} accepts {wanted - found}, and does not use them"
