"""Task heads of families other than plain encoders: logits match `transformers` after import and export, for the same texts."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pretune as pt
from pretune import PretuneError
from pretune.families import FAMILIES
from pretune.inference.predict import Predictor, load_task_model
from pretune.models.loading import load
from pretune.text.corpus.documents import Document
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import train_on_documents
from tests.support.family_configs import BART, BIG_BIRD, BIG_BIRD_FULL_ATTENTION, GPT, LONGFORMER, T5, XLM, XLNET
from tests.support.parity import assert_same, close
from tests.support.texts import english_documents

LABELS = {"0": "bad", "1": "good", "2": "so so"}
LANGUAGES = ("de", "en")
# Enough positions for all texts below.
PLACES = {"max_position_embeddings": 90}
TINY: dict[str, dict[str, Any]] = {
    "gpt2": GPT | {"n_positions": 90},
    "openai-gpt": GPT | {"n_positions": 90},
    "bart": BART | PLACES,
    "mbart": BART | PLACES,
    "longformer": LONGFORMER | PLACES,
    "big_bird": BIG_BIRD | BIG_BIRD_FULL_ATTENTION | PLACES,
    "xlnet": XLNET,
    "xlm": XLM | PLACES,
    "t5": T5,
    "mt5": T5,
}
CASES = [
    ("gpt2", "GPT2ForSequenceClassification", "classify"),
    ("gpt2", "GPT2ForTokenClassification", "tag"),
    ("gpt2", "GPT2ForQuestionAnswering", "answer"),
    ("gpt2", "GPT2DoubleHeadsModel", "choose"),
    ("openai-gpt", "OpenAIGPTForSequenceClassification", "classify"),
    ("openai-gpt", "OpenAIGPTDoubleHeadsModel", "choose"),
    ("bart", "BartForSequenceClassification", "classify"),
    ("bart", "BartForQuestionAnswering", "answer"),
    ("mbart", "MBartForSequenceClassification", "classify"),
    ("mbart", "MBartForQuestionAnswering", "answer"),
    ("longformer", "LongformerForSequenceClassification", "classify"),
    ("longformer", "LongformerForTokenClassification", "tag"),
    ("longformer", "LongformerForQuestionAnswering", "answer"),
    ("longformer", "LongformerForMultipleChoice", "choose"),
    ("big_bird", "BigBirdForSequenceClassification", "classify"),
    ("big_bird", "BigBirdForTokenClassification", "tag"),
    ("big_bird", "BigBirdForQuestionAnswering", "answer"),
    ("big_bird", "BigBirdForMultipleChoice", "choose"),
    ("xlnet", "XLNetForSequenceClassification", "classify"),
    ("xlnet", "XLNetForTokenClassification", "tag"),
    ("xlnet", "XLNetForQuestionAnsweringSimple", "answer"),
    ("xlnet", "XLNetForMultipleChoice", "choose"),
    ("xlm", "XLMForSequenceClassification", "classify"),
    ("xlm", "XLMForTokenClassification", "tag"),
    ("xlm", "XLMForQuestionAnsweringSimple", "answer"),
    ("xlm", "XLMForMultipleChoice", "choose"),
    ("t5", "T5ForSequenceClassification", "classify"),
    ("t5", "T5ForQuestionAnswering", "answer"),
    ("t5", "T5ForTokenClassification", "tag"),
    ("mt5", "MT5ForTokenClassification", "tag"),
    ("mt5", "MT5ForSequenceClassification", "classify"),
    ("mt5", "MT5ForQuestionAnswering", "answer"),
]
# Rows of each task, of different lengths.
ROWS: dict[str, list[dict[str, Any]]] = {
    "classify": [
        {"text": "An assignment is a statement"},
        {"text": "and that"},
        {"text": "or this one, which is a good deal longer than the others"},
    ],
    "pairs": [
        {"text": "An assignment is a statement", "pair": "and that"},
        {"text": "or this one", "pair": "which is a good deal longer than the others"},
    ],
    "tag": [
        {"words": ["An", "assignment", "is", "a", "statement"]},
        {"words": ["and", "that"]},
        {"words": ["or", "this", "one", ",", "which", "is", "a", "good", "deal", "longer", "than", "the", "others"]},
    ],
    "answer": [
        {"question": "What is it?", "context": "An assignment is a statement, an expression is not one."},
        {"question": "And what is an expression, if it is not a statement?", "context": "It has a value."},
    ],
    "choose": [
        {"premise": "An assignment", "choices": ["is a statement", "or this one, which is longer", "and"]},
        {"premise": "An expression has a value that is", "choices": ["no", "a number, a string or an object"]},
    ],
}
KINDS = {"gpt2": "byte-level-bpe", "longformer": "byte-level-bpe"}


@cache
def tokenizer(name: str) -> Tokenizer:
    documents = [Document(text, Path("x"), 1) for text in english_documents()[:2]]
    languages = LANGUAGES if name == "mbart" else ()
    return train_on_documents(documents, KINDS.get(name, "bpe"), 300, languages=languages)  # type: ignore[arg-type]


def write_tokenizer(name: str, folder: Path) -> Tokenizer:
    words = tokenizer(name)
    words.save(folder)
    if name == "mbart":
        content = json.loads((folder / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps(content | {"src_lang": "en"}))
    return Tokenizer.load(folder)


def make_theirs(name: str, kind: str, folder: Path) -> Any:
    """Save a model of `transformers` with random parameters, so that no agreement is accidental."""
    import transformers

    words = write_tokenizer(name, folder)
    roles = {"pad": "padding", "bos": "start", "eos": "end", "sep": "separator", "cls": "start"}
    start = FAMILIES[name].template.target[:1]
    ids = {f"{key}_token_id": words.role(role) for key, role in roles.items()}
    ids |= {"decoder_start_token_id": words.role(start[0])} if start else {}
    labels = {"id2label": LABELS} if kind.endswith(("SequenceClassification", "TokenClassification")) else {}
    config = transformers.AutoConfig.for_model(name, **(TINY[name] | {"vocab_size": words.size} | ids | labels))
    theirs = getattr(transformers, kind)(config).eval()
    torch.manual_seed(0)
    for parameter in theirs.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.2)
    theirs.save_pretrained(folder)
    return theirs


def write_rows(folder: Path, name: str, answers: dict[str, list[Any]] | None = None) -> Path:
    """Write the rows of a task into a file, with labels where they are given, by column."""
    file = folder / f"{name}.jsonl"
    known = [dict(zip(answers, row, strict=True)) for row in zip(*answers.values(), strict=True)] if answers else []
    rows = [row | right for row, right in zip(ROWS[name], known or [{}] * len(ROWS[name]), strict=True)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def padded(answerer: Predictor) -> tuple[dict[str, Tensor], list[int]]:
    """Return the input sequences of a model, padded for `transformers`, and their lengths."""
    model = answerer.model
    sequences = answerer.arrangement.take(np.arange(len(answerer.arrangement)))
    lengths = sequences.lengths.tolist()
    left = bool(model.family.template.last)  # XLNet pools the last token
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    mask = mask.flip(1) if left else mask
    inputs = {"input_ids": torch.full(mask.shape, model.require_tokenizer().role("padding"))}
    inputs["input_ids"][mask] = torch.from_numpy(sequences.ids)
    inputs["attention_mask"] = mask.long()
    if model.family.template.segments:
        inputs["token_type_ids"] = torch.zeros(mask.shape, dtype=torch.long)
        inputs["token_type_ids"][mask] = torch.from_numpy(sequences.columns["segment"])
    return inputs, lengths


@torch.no_grad()
def their_logits(theirs: Any, head: str, answerer: Predictor) -> list[Tensor]:
    """Return the logits of `transformers` for each sequence, without padding."""
    inputs, lengths = padded(answerer)
    mask = inputs["attention_mask"].bool()
    if head == "choose":
        if "DoubleHeads" in type(theirs).__name__:  # causal attention does not see the padding
            ids, last = inputs["input_ids"], torch.tensor(lengths) - 1
            return list(theirs(ids[None], mc_token_ids=last[None]).mc_logits[0])
        return list(theirs(**{key: value[None] for key, value in inputs.items()}).logits[0])
    out = theirs(**inputs)
    logits = torch.stack([out.start_logits, out.end_logits], -1) if head == "answer" else out.logits
    return list(logits) if head == "classify" else [row[real] for row, real in zip(logits, mask, strict=True)]


def compare(folder: Path, theirs: Any, head: str, rows: Path) -> None:
    """Compare the logits of the model in a folder with those of `transformers`, sequence by sequence."""
    model, task = load_task_model(folder)
    answerer = Predictor(model, task, task.read(rows, {}, answered=False))
    expected = their_logits(theirs, head, answerer)
    for ours, wanted in zip(answerer.outputs(torch.device("cpu")), expected, strict=True):
        ours = torch.as_tensor(ours)
        if type(theirs).__name__ == "BigBirdForQuestionAnswering":  # it masks the tokens of the question
            seen = wanted[:, 0] > -1e5
            assert seen.any() and not seen.all()
            ours, wanted = ours[seen], wanted[seen]
        close(ours, wanted)


@pytest.mark.not_fast
@pytest.mark.parametrize(("name", "kind", "head"), CASES, ids=[kind for _, kind, _ in CASES])
def test_logits_match_transformers_after_import_and_after_export(
    name: str, kind: str, head: str, tmp_path: Path
) -> None:
    theirs = make_theirs(name, kind, tmp_path / "theirs")
    files = [write_rows(tmp_path, rows) for rows in ([head, "pairs"] if head == "classify" else [head])]
    model = load(tmp_path / "theirs")
    assert head in model.root.heads and not model.untrained and not model.skipped_head_tensors
    for file in files:
        compare(tmp_path / "theirs", theirs, head, file)

    assert model.export(tmp_path / "ours") == kind
    again, report = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    # BigBird has a pooler that only multiple choice reads.
    assert not {key for key in report["missing_keys"] if not key.startswith("bert.pooler.")}
    assert not report["unexpected_keys"]
    for file in files:
        compare(tmp_path / "ours", again.eval(), head, file)
    assert_same(model.root, load(tmp_path / "ours").root)


# The labels of the rows of each task.
RIGHT: dict[str, dict[str, list[Any]]] = {
    "classify": {"label": ["bad", "good", "bad"]},
    "tag": {"tags": [["O"] * 4 + ["B-X"], ["O", "B-X"], ["O"] * 13]},
    "answer": {
        "answers": [{"text": ["a statement"], "answer_start": [17]}, {"text": ["a value"], "answer_start": [7]}],
    },
    "choose": {"label": [0, 1]},
}
LEARNED = [
    ("gpt2", "GPT2ForTokenClassification", "tag"),
    ("gpt2", "GPT2ForQuestionAnswering", "answer"),
    ("gpt2", "GPT2DoubleHeadsModel", "choose"),
    ("bart", "BartForQuestionAnswering", "answer"),
    ("mbart", "MBartForSequenceClassification", "classify"),
    ("longformer", "LongformerForMultipleChoice", "choose"),
    ("big_bird", "BigBirdForQuestionAnswering", "answer"),
    ("xlm", "XLMForMultipleChoice", "choose"),
    ("t5", "T5ForQuestionAnswering", "answer"),
]


@pytest.mark.end_to_end
@pytest.mark.parametrize(("name", "kind", "head"), LEARNED, ids=[kind for _, kind, _ in LEARNED])
def test_a_fine_tuned_model_exports_to_its_transformers_class(name: str, kind: str, head: str, tmp_path: Path) -> None:
    import transformers

    make_theirs(name, FAMILIES[name].classes[frozenset()], tmp_path / "base")
    train_file = write_rows(tmp_path, head, RIGHT[head])
    pt.finetune(
        tmp_path / "base",
        train_file,
        dev=train_file,
        objective=head,
        epochs=1,
        num_seeds=1,
        report=False,
        out=tmp_path / "run",
    )
    pt.export(tmp_path / "run", out=tmp_path / "out")
    theirs, report = getattr(transformers, kind).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not {key for key in report["missing_keys"] if not key.startswith("bert.pooler.")}
    assert not report["unexpected_keys"]
    rows = write_rows(tmp_path, head)
    compare(tmp_path / "run", theirs.eval(), head, rows)
    answers = pt.predict(tmp_path / "run", rows)
    assert len(answers) == len(ROWS[head])
    if head in ("classify", "choose"):
        model, task = load_task_model(tmp_path / "run")
        logits = their_logits(theirs, head, Predictor(model, task, task.read(rows, {}, answered=False)))
        if head == "classify":
            shares = [row.softmax(-1).max().item() for row in logits]
        else:
            sizes = [len(row["choices"]) for row in ROWS[head]]
            shares = [part.softmax(-1).max().item() for part in torch.stack(logits).split(sizes)]
        assert [answer["probability"] for answer in answers] == pytest.approx(shares, abs=1e-5)


@pytest.mark.parametrize(("name", "kind"), [("xlm", "XLMForQuestionAnswering"), ("xlnet", "XLNetForQuestionAnswering")])
def test_a_model_with_an_unsupported_head_refuses_to_predict(name: str, kind: str, tmp_path: Path) -> None:
    make_theirs(name, kind, tmp_path)
    model = load(tmp_path)
    assert not model.root.heads and any("end_logits" in tensor for tensor in model.skipped_head_tensors)
    with pytest.raises(PretuneError, match=f"its class {kind} has a question-answering head with beam search"):
        pt.predict(tmp_path, write_rows(tmp_path, "answer"))


def test_a_summary_of_unsupported_width_refuses_to_predict(tmp_path: Path) -> None:
    """XLM computes the scores of choices from num_labels numbers; only the default of two is supported."""
    import transformers

    words = write_tokenizer("xlm", tmp_path)
    config = transformers.XLMConfig(**(TINY["xlm"] | {"vocab_size": words.size}), num_labels=3)
    transformers.XLMForMultipleChoice(config).save_pretrained(tmp_path)
    with pytest.raises(
        PretuneError, match=r"head for choose is untrained \(sequence_summary\.summary\.weight is missing from"
    ):
        pt.predict(tmp_path, write_rows(tmp_path, "choose"))


@pytest.mark.parametrize("source", ["de", "en", None])
def test_mbart_reads_texts_in_the_language_of_src_lang(source: str | None, tmp_path: Path) -> None:
    make_theirs("mbart", "MBartForSequenceClassification", tmp_path)
    content = json.loads((tmp_path / "tokenizer_config.json").read_text()) | {"src_lang": source}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(content))
    rows = write_rows(tmp_path, "classify")
    if source is None:
        with pytest.raises(PretuneError, match=r"set src_lang in tokenizer_config\.json \(languages: de, en\)"):
            pt.predict(tmp_path, rows)
        return
    model, task = load_task_model(tmp_path)
    answerer = Predictor(model, task, task.read(rows, {}, answered=False))
    sequences = answerer.arrangement.take(np.arange(1))
    assert sequences.second is not None
    language = model.require_tokenizer().role(f"language {source}")
    assert sequences.ids[-1] == sequences.second.ids[0] == language
    assert sequences.ids[-2] == model.require_tokenizer().role("end")


def test_every_task_class_of_transformers_is_covered() -> None:
    """Every task class of `transformers` for these families is supported, or refused by name."""
    import importlib

    from transformers import AutoConfig

    ends = ("SequenceClassification", "TokenClassification", "MultipleChoice", "DoubleHeadsModel")
    found: set[str] = set()
    for name in TINY:
        module = type(AutoConfig.for_model(name)).__module__.replace("configuration", "modeling")
        kinds = importlib.import_module(module).__all__
        found |= {kind for kind in kinds if kind.endswith(ends) or "QuestionAnswering" in kind}
    closed = {kind for name in TINY for kind in FAMILIES[name].unsupported_classes}
    assert {kind for _, kind, _ in CASES} == found - closed
