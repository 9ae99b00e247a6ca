"""Tests of text-to-text tasks: prefixes, agreement with `transformers`, closed label sets, and truncation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import pretune as pt
from pretune.inference.generation.decoding_session import DecodingSession
from pretune.inference.generation.sampling import mask_disallowed
from pretune.inference.generation.text_to_text_answers import generate_answers
from pretune.inference.predict import Predictor, load_task_model
from pretune.models.loading import load_model
from pretune.objectives import Data, parse_objective, single_objective
from pretune.objectives.tasks.generate import Generate
from pretune.packed import pack_lists
from pretune.runtime.randomness import EpochRandom
from pretune.text.examples.labeled import LabeledRows
from pretune.text.examples.text_to_text import guess_source_target, read_text_to_text
from pretune.text.packing.sequence_parts import compose_sequences, truncate_longest
from pretune.text.packing.sequences import Packing, collate
from pretune.text.tokenizers.token_trie import TokenTrie
from pretune.training.data_streams import DataStream
from pretune.training.jobs.finetuning import row_packing
from tests.support.objective_data import TEMPLATES, store
from tests.support.tiny_models import read, tiny, tune

WORDS = {"red": ("rouge", "rot"), "water": ("eau", "wasser"), "fire": ("feu", "feuer"), "tree": ("arbre", "baum")}
NAMES = ["t5-tiny", "gpt2-tiny"]


@pytest.fixture(scope="module", params=NAMES)
def translation_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> pt.Run:
    """Return a run that learned to translate, with the language as a prefix."""
    folder = tmp_path_factory.mktemp("runs")
    rows = [
        f"{prefix}: {word},{words[side]}"
        for side, prefix in enumerate(("french", "german"))
        for word, words in WORDS.items()
    ]
    (folder / "train.csv").write_text("\n".join(["source,target", *rows * 4]), encoding="utf-8")
    model = tiny(request.param, read([row.replace(",", " = ") for row in rows]), folder / "start")
    return tune(model, folder / "train.csv", folder / "run", "generate(max_new_tokens=4)", steps=90)


@pytest.mark.not_fast
def test_prefix_determines_the_output(translation_run: pt.Run) -> None:
    assert translation_run.results["dev/exact_match"] == 1.0
    for word, words in WORDS.items():
        answers = translation_run.predict([f"french: {word}", f"german: {word}"])
        assert [answer["answer"] for answer in answers] == list(words)


@pytest.mark.not_fast
def test_prefix_is_an_option_and_beam_search_works(translation_run: pt.Run) -> None:
    model, _ = load_task_model(translation_run.folder)
    examples = LabeledRows(Path("x"), {}, list(WORDS))
    for side, prefix in enumerate(("french:", "german: ")):
        for beams in (1, 3):
            task: Any = Generate(prefix=prefix, max_new_tokens=4, num_beams=beams)
            answers = Predictor(model, task, examples)()
            assert [answer["answer"] for answer in answers] == [words[side] for words in WORDS.values()]


@pytest.mark.not_fast
def test_closed_answers_are_restricted_to_the_labels(translation_run: pt.Run) -> None:
    model, _ = load_task_model(translation_run.folder)
    examples = LabeledRows(Path("x"), {}, ["french: red", "german: tree", "red red"])
    for beams in (1, 2):
        task: Any = Generate(constrained=True, labels=("eau", "wasser rot", "baum"), num_beams=beams)
        assert {answer["answer"] for answer in Predictor(model, task, examples)()} <= {"eau", "wasser rot", "baum"}


def test_answers_do_not_depend_on_their_batch(translation_run: pt.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from pretune.inference.generation import text_to_text_answers

    texts = [f"french: {' '.join(list(WORDS)[: 1 + i % 4])}" for i in range(9)]
    together = translation_run.predict(texts)
    monkeypatch.setattr(text_to_text_answers, "TOKENS", 1)
    assert translation_run.predict(texts) == together


def test_cached_decoding_equals_the_full_forward_pass(translation_run: pt.Run) -> None:
    model, _ = load_task_model(translation_run.folder)
    model.root.eval()
    task: Any = Generate(max_new_tokens=4)
    laid = task.tokenize_examples(
        Data(model.require_tokenizer(), model.family.template, rows=LabeledRows(Path("x"), {}, ["red", "a fire"])), 20
    )
    (source,) = collate(laid.take(np.arange(2))).packed
    encoder = bool(model.family.template.target)
    texts = [[5, 6, 7], [8, 9, 10]]
    before = [[0], [0]] if encoder else [part.tolist() for part in source.ids.split(laid.lengths.tolist())]
    with torch.no_grad():
        reader = DecodingSession(model, 2, 40, (source,) if encoder else (), head="generate")
        reader.read(before)
        bits = [reader.read([[text[i]] for text in texts]) for i in range(3)]
        whole = pack_lists([a + b for a, b in zip(before, texts, strict=True)])
        batch = collate(laid.take(np.arange(2)))
        batch.packed = (source, whole) if encoder else (whole,)
        slow = task.outputs(model.root.heads["generate"], model.backbone, batch)
    last = whole.offsets[1:].long() - 1
    for i in range(3):
        expected = slow[last - 2 + i][:, : model.require_tokenizer().size]
        torch.testing.assert_close(bits[i], expected, atol=1e-5, rtol=1e-5)


def test_saved_and_exported_models_give_the_same_answers(translation_run: pt.Run) -> None:
    from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(translation_run.folder)
    ours = translation_run.predict(["french: red", "german: fire"])
    model = load_model(translation_run.folder)
    if model.family.template.target:
        reference = AutoModelForSeq2SeqLM.from_pretrained(translation_run.folder).eval()
        texts = [tokenizer(text, return_tensors="pt") for text in ("french: red", "german: fire")]
    else:
        reference = AutoModelForCausalLM.from_pretrained(translation_run.folder).eval()
        texts = [tokenizer(text, return_tensors="pt") for text in ("french: red =", "german: fire =")]
    for answer, text in zip(ours, texts, strict=True):
        ids, mask = text["input_ids"], text["attention_mask"]
        end = model.require_tokenizer().role("end")
        out = reference.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=4, do_sample=False, eos_token_id=end, pad_token_id=0
        )
        new = out[0] if model.family.template.target else out[0, ids.shape[1] :]
        assert tokenizer.decode(new, skip_special_tokens=True).strip() == answer["answer"]


@pytest.mark.not_fast
def test_labels_as_texts_are_scored_as_classes(tmp_path: Path) -> None:
    rows = [f"{word} {i},{'warm' if word in ('red', 'fire') else 'cold'}" for i in range(8) for word in WORDS]
    (tmp_path / "train.csv").write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    model = tiny("gpt2-tiny", read([row.replace(",", " = ") for row in rows]), tmp_path / "start")
    run = tune(
        model, tmp_path / "train.csv", tmp_path / "run", 'generate(prefix="feels, say:",constrained=true)', steps=120
    )
    assert run.results["dev/accuracy"] == run.results["dev/exact_match"] == 1.0
    assert run.results["labels"] == ["cold", "warm"] and "dev/f1" in run.results
    assert run.predict(["fire 3", "water 1"]) == [{"answer": "warm"}, {"answer": "cold"}]
    dev = tmp_path / "dev.csv"
    dev.write_text("text,label\nred 3,hot\n", encoding="utf-8")
    again = tune(model, tmp_path / "train.csv", tmp_path / "again", "generate(constrained=true)", steps=1, dev=dev)
    assert again.results["dev/accuracy"] == 0.0  # an answer that is not in the training data is never predicted


@pytest.mark.parametrize("name", ["t5", "bart"])
@pytest.mark.parametrize("beams", [1, 3])
def test_generated_text_equals_that_of_transformers(name: str, beams: int, tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForSeq2SeqLM

    tokenizer = store().tokenizer
    shape: dict[str, Any] = {"d_model": 32, "decoder_layers": 2, "encoder_layers": 2, "max_position_embeddings": 64}
    shape |= {
        f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (("attention_heads", 4), ("ffn_dim", 64))
    }
    if name == "t5":
        shape = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    ids = {"pad_token_id": tokenizer.role("padding"), "eos_token_id": None, "bos_token_id": None}
    first = tokenizer.role("end" if name == "bart" else "padding")
    free = {"forced_eos_token_id": None, "forced_bos_token_id": None, "decoder_start_token_id": first}
    torch.manual_seed(3)
    reference = AutoModelForSeq2SeqLM.from_config(
        AutoConfig.for_model(name, vocab_size=tokenizer.size, **shape, **ids, **free)
    )
    for key, parameter in reference.named_parameters():
        scale = "norm" in key and key.endswith("weight")
        torch.nn.init.normal_(parameter, mean=float(scale), std=0.5 if parameter.dim() > 1 else 0.1)
    reference.eval().save_pretrained(tmp_path)
    model = load_model(tmp_path, parse_objective("generate"))
    model.tokenizer = tokenizer
    model.root.eval()
    task = Generate(max_new_tokens=8, num_beams=beams)
    texts = ["the value of a list", "if", "a function is not an object of a class at all"]
    laid = task.tokenize_examples(Data(tokenizer, model.family.template, rows=LabeledRows(Path("x"), {}, texts)), 40)
    with torch.no_grad():
        found = generate_answers(model, task, laid)
    sequences = laid.take(np.arange(3))
    begin = [tokenizer.role(item) for item in model.family.template.target if item != "A"][:-1]
    for row in range(3):
        source = torch.tensor([sequences.ids[sequences.offsets[row] : sequences.offsets[row + 1]].tolist()])
        out = reference.generate(
            input_ids=source, attention_mask=torch.ones_like(source), decoder_input_ids=torch.tensor([begin]),
            max_new_tokens=8, num_beams=beams, do_sample=False, eos_token_id=tokenizer.role("end"), pad_token_id=0,
        )[0, len(begin) :].tolist()  # fmt: skip
        end = tokenizer.role("end")
        assert found[row].tolist() == out[: out.index(end) if end in out else len(out)]
    assert len({tuple(ids) for ids in found}) > 1


# -- arrangement ----------------------------------------------------------------------------------------------------

strings = st.text("abcdefg hijk", max_size=50)


@settings(max_examples=25)
@given(
    st.lists(st.tuples(strings, strings), min_size=1, max_size=6),
    st.integers(14, 40),
    st.sampled_from(["t5", "bart", "bert"]),
)
def test_only_the_target_is_predicted(pairs: list[tuple[str, str]], length: int, template: str) -> None:
    tokenizer, frame = store().tokenizer, TEMPLATES[template]
    rows = LabeledRows(Path("x"), {}, [a for a, _ in pairs], labels=[b for _, b in pairs])
    task = Generate(prefix="say:")
    epoch = task.arrange(Data(tokenizer, frame, rows=rows), Packing(256, length), EpochRandom(0))
    seen = 0
    for index in range(len(epoch)):
        sequences = task.corrupt(epoch.pack(index), tokenizer, EpochRandom(0))
        side = sequences if sequences.second is None else sequences.second
        at, target = side.targets["generate"]
        assert (side.lengths <= length).all() and (sequences.lengths <= length).all()
        for place, row in enumerate(sequences.index):
            source, wanted = (tokenizer.encode(text) for text in (f"say: {pairs[row][0]}".strip(), pairs[row][1]))
            mine = target[side.owner[at] == place].tolist()
            assert mine[-1] == tokenizer.role("end")
            written = [token for token in mine[:-1] if token != tokenizer.role("start")]
            assert written == wanted[: len(written)]
            read_ = sequences.ids[sequences.owner == place].tolist()
            before = {"t5": 0, "bart": 1, "bert": 1}[template]
            fits = len(source) + len(wanted) + 6 <= length
            if fits:
                assert written == wanted and read_[before : before + len(source)] == source
            seen += 1
    assert seen == len(pairs)


@pytest.mark.parametrize("template", ["t5", "bart", "bert"])
def test_every_pack_fits_its_fixed_shapes(template: str) -> None:
    texts = [("a b c d " * (i % 7), "e f g " * (i % 11)) for i in range(60)]
    rows = LabeledRows(Path("x"), {}, [a for a, _ in texts], labels=[b for _, b in texts])
    data, task = Data(store().tokenizer, TEMPLATES[template], rows=rows), Generate()
    laid = task.tokenize_examples(data, 32)
    stream = DataStream(single_objective(task).joints[0], data, row_packing(laid, 8, 32, fixed=True), seed=1)
    batches = [stream.batch(epoch, index, 0.0) for epoch in range(3) for index in range(len(stream.epoch_plan(epoch)))]
    assert len({tuple(packed.ids.shape for packed in batch.packed) for batch in batches}) == 1
    assert sum(len(batch.rows) for batch in batches) == 180
    assert np.mean([len(batch.rows) for batch in batches]) > 6


@given(st.lists(st.lists(st.integers(0, 30), min_size=3, max_size=3), min_size=1, max_size=5), st.integers(3, 40))
def test_truncation_uses_all_available_tokens(lengths: list[list[int]], room: int) -> None:
    whole = np.array(lengths)
    kept = truncate_longest(whole, room)
    assert (kept <= whole).all() and (kept.sum(1) <= room).all()
    for before, after in zip(whole, kept, strict=True):
        assert before.sum() <= room or after.sum() == room
        assert (
            len({int(n) for n, w in zip(after, before, strict=True) if n < w}) <= 2
        )  # all that are truncated have the same length
        if (after < before).any():
            assert after.max() - after[after < before].min() <= 1


def test_lengths_without_room_for_text_are_rejected() -> None:
    with pytest.raises(pt.PretuneError, match="a maximum length of 3 tokens leaves no room for text"):
        compose_sequences([["a"], (1, 2)], store().tokenizer, ("start", "A", "end"), 3)


def test_trie_allows_only_valid_continuations() -> None:
    allowed = TokenTrie([[1, 2], [1, 3, 2], [4, 2]]).after
    assert allowed([]) == {1, 4} and allowed([1]) == {2, 3} and allowed([7]) == set()
    logits = torch.arange(5.0).repeat(2, 1)
    assert mask_disallowed(logits, [[], [1]], allowed).isfinite().tolist() == [
        [False, True, False, False, True],
        [False, False, True, True, False],
    ]
    assert mask_disallowed(logits, [[], [1]], None) is logits


# -- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["id", "source", "target"], {"text": "source", "label": "target"}),
        (["Input", "Output"], {"text": "Input", "label": "Output"}),
        (["en", "de"], {"text": "en", "label": "de"}),
        (["label", "sentence"], {}),
        (["a", "b", "c"], {}),
    ],
)
def test_columns_are_inferred(names: list[str], expected: dict[str, str]) -> None:
    assert guess_source_target(names) == expected


def test_several_file_formats_are_read(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"article": "long", "highlights": "short", "id": 1}\n', encoding="utf-8")
    rows = read_text_to_text(file, {})
    assert rows.texts == ["long"] and rows.labels == ["short"]
    assert read_text_to_text(file, {}, answered=False).labels is None
    named = read_text_to_text(file, {"text": "highlights", "label": "id"})
    assert named.texts == ["short"] and named.labels == ["1"]
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("premise,hypothesis,label\nA,B,yes\nC,D,no\n", encoding="utf-8")
    rows = read_text_to_text(pairs, {})
    assert Generate(prefix="rte").sources(rows) == ["rte sentence1: A sentence2: B", "rte sentence1: C sentence2: D"]
    empty = tmp_path / "empty.csv"
    empty.write_text("source,target\na,\n", encoding="utf-8")
    with pytest.raises(pt.PretuneError, match=r"empty\.csv: 1 of 1 rows have no label in 'target': line 2"):
        read_text_to_text(empty, {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("generate(metric=blue)", "metric='blue': input should be .* or 'bleu'"),
        ("generate(max_new_tokens=0)", "tokens=0: expected a number that is at least 1"),
        ("generate(language_pair=en)", "does not name two languages; write, for example, language_pair=en-ro"),
        ("generate(label_smoothing=2)", "the share must be at least 0 and less than 1"),
        ("generate+lm", "alternate the objectives with"),
        ("generate on mix", "generate reads the last layer"),
        ("generate(prefx=a)", "unknown option 'prefx'; did you mean 'prefix'"),
    ],
)
def test_invalid_options_are_rejected(text: str, message: str) -> None:
    with pytest.raises(pt.PretuneError, match=message):
        parse_objective(text)


def test_quoted_values_may_contain_special_characters() -> None:
    mixture = parse_objective('0.5*generate(prefix="a | b, (c) + d: ",num_beams=2)|0.5*mlm(mask_rate=0.3)')
    first, second = mixture.objectives
    assert isinstance(first, Generate) and first.prefix == "a | b, (c) + d: " and first.num_beams == 2
    assert second.name == "mlm" and mixture.shares[0][0] == 0.5
    bare: Any = parse_objective("generate(prefix=summarize: )").objectives[0]
    assert bare.sources(LabeledRows(Path("x"), {}, ["a text"])) == ["summarize: a text"]


def test_generate_verb_gives_the_same_output(translation_run: pt.Run) -> None:
    encoder = bool(load_model(translation_run.folder).family.template.target)
    (row,) = pt.generate(translation_run.folder, ["french: red" if encoder else "french: red ="], max_new_tokens=4)
    assert (
        row["text" if encoder else "continuation"].strip()
        == translation_run.predict(["french: red"])[0]["answer"]
        == "rouge"
    )
