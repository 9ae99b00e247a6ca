"""Vectors of texts and spans equal those computed one by one; long texts, unreadable spans and missing layers are reported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pretune.inference.hidden_states import compute_states
from pretune.models.model import Model
from pretune.probing.probing_task import ProbingExample, ProbingTask
from pretune.probing.representations import (
    SpanTokens,
    choose_layers,
    compute_representations,
    example_passages,
    max_text_tokens,
)
from pretune.runtime.errors import PretuneError
from pretune.text.tokenizers.training import Kind
from tests.support.tiny_models import random_model, small_tokenizer

TEXTS = ["the value of a name", "a class", "", "objects are values of a type, and have an identity"]
FAMILIES: dict[str, tuple[Kind, str]] = {
    "bert": ("wordpiece", "mlm"),
    "gpt2": ("byte-level-bpe", "lm"),
    "t5": ("byte-level-bpe", "spans"),
    "lstm": ("wordpiece", "lm"),
}


def model_of(family: str) -> Model:
    kind, objective = FAMILIES[family]
    return random_model(family, small_tokenizer(kind), objective)


def task_of(*examples: ProbingExample) -> ProbingTask:
    return ProbingTask("sample", "surface", examples)


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_and_spans_are_means_of_their_tokens_in_every_layer(family: str, tmp_path: Path) -> None:
    model = model_of(family)
    whole = task_of(*(ProbingExample(text, "x", "train") for text in TEXTS))
    words = task_of(
        ProbingExample(TEXTS[0], "x", "train", spans=((4, 9),)),
        ProbingExample(TEXTS[3], "x", "train", spans=((12, 18),)),
    )
    first, second = compute_representations(model, [whole, words], tmp_path)
    states = compute_states(model, TEXTS, hidden_states=True)
    assert states.hidden_states is not None
    ids, lengths, offsets = model.require_tokenizer().encode_with_offsets(TEXTS)
    begins = np.cumsum(lengths) - lengths
    lead = states.ids[0].tolist().index(int(ids[0]))  # special tokens before a text
    for layer, layer_states in enumerate(states.hidden_states):
        counts = states.mask.sum(1, keepdim=True)
        expected = (layer_states * states.mask[..., None]).sum(1) / counts.clamp(min=1)
        assert np.allclose(first.features("train", layer), expected, atol=0.02, rtol=1e-3)
        for place, (text, (begin, end)) in enumerate(((0, (4, 9)), (3, (12, 18)))):
            own = offsets[begins[text] : begins[text] + lengths[text]]
            inside = [k for k, (a, b) in enumerate(own) if a < end and b > begin]
            mean = layer_states[text, [lead + k for k in inside]].mean(0)
            assert np.allclose(second.features("train", layer)[place], mean, atol=0.02, rtol=1e-3)


@pytest.mark.parametrize("pooling", ["cls", "max"])
def test_other_poolings(pooling: str, tmp_path: Path) -> None:
    model = model_of("bert")
    [vectors] = compute_representations(model, [task_of(ProbingExample(TEXTS[0], "x", "train"))], tmp_path, pooling)  # type: ignore[arg-type]
    last = compute_states(model, TEXTS[:1]).last_hidden_state[0]
    expected = last[0] if pooling == "cls" else last.amax(0)
    assert np.allclose(vectors.features("train", 2)[0], expected, atol=0.02, rtol=1e-3)


def test_two_spans_or_texts_are_two_vectors_and_their_product(tmp_path: Path) -> None:
    spans = ProbingExample(TEXTS[0], "x", "train", spans=((4, 9), (15, 19)))
    pair = ProbingExample(TEXTS[0], "x", "train", spans=((4, 9), (2, 7)), pair=TEXTS[1])
    assert [passage.text for passage in example_passages(pair)] == TEXTS[:2]
    both = [task_of(spans), task_of(pair), task_of(ProbingExample(TEXTS[0], "x", "train", pair=TEXTS[1]))]
    for vectors in compute_representations(model_of("bert"), both, tmp_path):
        a, b, product = np.split(vectors.features("train", 1)[0], 3)
        assert np.allclose(a * b, product) and not np.allclose(a, b)
        assert vectors.stack("train", [0, 2]).shape == (1, 2, 2, 16)


def test_long_texts_are_truncated_and_spans_beyond_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRETUNE_PROGRESS", raising=False)
    model = model_of("bert")  # 24 positions
    text = "value " * 60
    task = task_of(
        ProbingExample(text, "x", "train", spans=((0, 5),)),
        ProbingExample(text, "y", "train", spans=((300, 305),)),
        ProbingExample("a  b", "z", "train", spans=((1, 3),)),  # only spaces
        ProbingExample(text, "x", "train"),
    )
    with_spans = task_of(*task.examples[:3])
    vectors, whole = compute_representations(model, [with_spans, task_of(task.examples[3])], tmp_path)
    assert [example.label for example in vectors.task.examples] == ["x"]
    assert whole.features("train", 0).shape == (1, 16)
    said = capsys.readouterr().err
    room = max_text_tokens(model)
    assert f"1 of 3 examples are left out, because their spans end after the first {room} tokens" in said
    assert "characters 300 to 305" in said and "their spans have no tokens" in said
    assert f"1 of 1 texts are longer than the {room} tokens that the model reads" in said


def test_texts_are_read_once_and_again_only_after_damage(tmp_path: Path) -> None:
    model = model_of("bert")
    calls: list[int] = []
    model.backbone.register_forward_hook(lambda *_: calls.append(1))
    tasks = [task_of(*(ProbingExample(text, label, "train") for text in TEXTS)) for label in "xy"]
    first, second = compute_representations(model, tasks, tmp_path)
    assert len(calls) == 1 and np.array_equal(first.features("train", 1), second.features("train", 1))
    [again] = compute_representations(model, tasks[:1], tmp_path)
    assert len(calls) == 1
    [file] = tmp_path.rglob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-5])
    [again] = compute_representations(model, tasks[:1], tmp_path)
    assert len(calls) == 2 and np.array_equal(first.features("train", 1), again.features("train", 1))
    compute_representations(model, [task_of(ProbingExample("new", "x", "train"), *tasks[0].examples)], tmp_path)
    assert len(calls) == 3 and len(list(tmp_path.rglob("*.safetensors"))) == 2  # only the new text


def test_span_tokens_overlap_the_span() -> None:
    model = model_of("bert")
    text = "identity, values"
    offsets = model.require_tokenizer().encode_with_offsets([text])[2]
    first, after = SpanTokens(model, example_passages(ProbingExample(text, "x", "train", spans=((0, 8),)))).find(
        text, (0, 8)
    )
    assert first == 0 and offsets[after - 1][1] == 8 and offsets[after][0] >= 8


def test_layers_that_do_not_exist_are_named_with_the_range() -> None:
    assert choose_layers(None, 3) == [0, 1, 2] and choose_layers([2, -3, 2], 3) == [0, 2]
    for wrong in (3, -4):
        with pytest.raises(PretuneError, match=rf"--layers {wrong}: .* from 0 \(the embeddings\) to 2 \(the top\)"):
            choose_layers([wrong], 3)


def test_vectors_do_not_depend_on_the_other_texts(tmp_path: Path) -> None:
    model = model_of("bert")
    alone = [
        compute_representations(model, [task_of(ProbingExample(t, "x", "train"))], tmp_path / str(i))[0]
        for i, t in enumerate(TEXTS)
    ]
    [together] = compute_representations(model, [task_of(*(ProbingExample(t, "x", "train") for t in TEXTS))], tmp_path)
    stacked = torch.cat([vectors.stack("train", [0, 1, 2]) for vectors in alone])
    assert torch.allclose(stacked.float(), together.stack("train", [0, 1, 2]).float(), atol=0.01)
