"""Output matrices of language models that are not the token embedding, and bias tensors with two names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import pretune as pt
from pretune import PretuneError
from pretune.families import FAMILIES
from pretune.models.adapt_vocabulary import replace_vocabulary
from pretune.models.create_model import make_model
from pretune.models.loading import load_model
from pretune.models.model import Model, Network
from pretune.objectives import parse_objective
from pretune.text.corpus.documents import Document
from pretune.text.tokenizers.training import train_on_documents
from tests.families.test_config_keys import CASES, Case, change, quick
from tests.support.parity import assert_same, close

UNTIED = [name for name in CASES if FAMILIES[name].table.output]


def reload(case: Case, folder: Path) -> Any:
    """What `transformers` makes of a folder."""
    import transformers

    peer, report = getattr(transformers, case.kind).from_pretrained(folder, output_loading_info=True)
    missing = [name for name in report["missing_keys"] if ".pooler." not in name]  # BigBird's, which no head reads
    assert not missing and not report["unexpected_keys"], report
    return peer.eval()


def untied(case: Case, folder: Path) -> Any:
    """A model of `transformers` with an output matrix of its own; token vectors of both sides are the same."""
    case.peer(folder, {"tie_word_embeddings": False})
    table = FAMILIES[case.family].table
    tensors = load_file(folder / "model.safetensors")
    own = torch.randn(60, tensors[table.embedding[0]].shape[1], generator=torch.Generator().manual_seed(1))
    tensors |= {name: tensors[table.embedding[0]].clone() for name in table.embedding} | {table.output: own}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return reload(case, folder)


@pytest.mark.parametrize("name", quick(UNTIED))
def test_a_matrix_of_its_own_is_read_and_written(name: str, tmp_path: Path) -> None:
    case, table = CASES[name], FAMILIES[name].table
    peer = untied(case, tmp_path / "peer")
    close(case.ours(tmp_path / "peer", peer.config), case.theirs(peer))
    model = pt.load(tmp_path / "peer")
    assert not model.config.tie_word_embeddings
    model.save(tmp_path / "a")
    assert not (tmp_path / "a" / "head.safetensors").exists()
    pt.load(tmp_path / "a").save(tmp_path / "b")
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    close(case.theirs(reload(case, tmp_path / "a")), case.theirs(peer))
    # Without it the head is new; nothing stands in for it.
    tensors = load_file(tmp_path / "peer" / "model.safetensors")
    del tensors[table.output]
    save_file(tensors, tmp_path / "peer" / "model.safetensors", {"format": "pt"})
    if name not in ("t5", "mt5"):  # which `transformers` ties whenever it can
        assert [table.published_names(lacking) for lacking in pt.load(tmp_path / "peer").untrained] == [(table.output,)]


@pytest.mark.parametrize("name", quick(UNTIED))
def test_a_matrix_that_differs_counts_even_if_config_ties_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `transformers` 5 has it; where it does not differ, it is tied."""
    said: list[str] = []
    monkeypatch.setattr("pretune.models.loading.log_info", said.append)
    case, table = CASES[name], FAMILIES[name].table
    case.peer(tmp_path, {})
    tensors = load_file(tmp_path / "model.safetensors")
    (there,) = {table.output, *table.embedding} & tensors.keys()
    embedding = tensors[there]
    both = tensors | {table.embedding[0]: embedding, table.output: embedding.clone()}
    save_file(both, tmp_path / "model.safetensors", {"format": "pt"})
    peer = reload(case, tmp_path)
    close(case.ours(tmp_path, peer.config), case.theirs(peer))
    assert pt.load(tmp_path).config.tie_word_embeddings and not said
    save_file(both | {table.output: embedding.flip(0)}, tmp_path / "model.safetensors", {"format": "pt"})
    peer = reload(case, tmp_path)
    close(case.ours(tmp_path, peer.config), case.theirs(peer))
    assert said == [f"{tmp_path}: {table.output} differs from the token embedding, so the two are loaded untied"]


@pytest.mark.parametrize("name", quick(UNTIED))
def test_the_output_alone_is_the_embedding_where_config_ties_them(name: str, tmp_path: Path) -> None:
    """GPT-2 with only lm_head.weight."""
    case, table = CASES[name], FAMILIES[name].table
    peer = case.peer(tmp_path, {})
    tensors = load_file(tmp_path / "model.safetensors")
    (there,) = {table.output, *table.embedding} & tensors.keys()
    tensors[table.output] = tensors.pop(there)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    close(case.ours(tmp_path, peer.config), case.theirs(peer))
    if name not in ("t5", "mt5"):
        change(tmp_path, tie_word_embeddings=False)
        with pytest.raises(PretuneError, match=f"tensors missing: {table.embedding[0]}"):
            pt.load(tmp_path)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", quick(name for name in UNTIED if FAMILIES[name].table.copied))
def test_of_two_names_of_a_bias_the_one_counts_that_transformers_adds(name: str, tied: bool, tmp_path: Path) -> None:
    case = CASES[name]
    ((copy, source),) = FAMILIES[name].table.copied.items()
    case.peer(tmp_path, {"tie_word_embeddings": tied})
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(
        tensors | {copy: torch.zeros(60), source: torch.arange(60.0)}, tmp_path / "model.safetensors", {"format": "pt"}
    )
    peer = reload(case, tmp_path)
    close(case.ours(tmp_path, peer.config), case.theirs(peer))
    if tied:  # older files have but one
        for only in (copy, source):
            rest = {name: tensor for name, tensor in tensors.items() if name not in (copy, source)}
            save_file(rest | {only: torch.arange(60.0)}, tmp_path / "model.safetensors", {"format": "pt"})
            close(case.ours(tmp_path, peer.config), case.theirs(peer))


def test_token_vectors_of_two_sides_that_differ_are_refused(tmp_path: Path) -> None:
    CASES["bart"].peer(tmp_path, {"tie_word_embeddings": False})
    words = r"tensors model\.shared\.weight and model\.encoder\.embed_tokens\.weight differ, .*tie_word_embeddings"
    with pytest.raises(PretuneError, match=words):
        pt.load(tmp_path)


def test_what_is_tied_in_transformer_xl_must_be_equal(tmp_path: Path) -> None:
    mixture = parse_objective("lm")
    model = make_model("transfo-xl-tiny")
    model.add_heads(mixture.objectives)
    model.objective = "lm"
    model.save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tied = {"crit.out_layers.0.weight": tensors["transformer.word_emb.emb_layers.0.weight"].clone()}
    save_file(tensors | tied, tmp_path / "model.safetensors")
    assert_same(model.root, load_model(tmp_path, mixture).root)
    save_file(tensors | {name: tensor + 1 for name, tensor in tied.items()}, tmp_path / "model.safetensors")
    with pytest.raises(PretuneError, match=r"crit\.out_layers\.0\.weight differ"):
        load_model(tmp_path, mixture)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_another_vocabulary_takes_rows_of_both_matrices(name: str, tmp_path: Path, english: list[str]) -> None:
    case = CASES[name]
    untied(case, tmp_path / "peer")
    model = pt.load(tmp_path / "peer")
    documents = [Document(text, Path("x"), 1) for text in english[:2]]
    old, new = (train_on_documents(documents, "byte-bpe", size) for size in (300, 290))
    model.tokenizer = old
    wide, _ = replace_vocabulary(_widened(model, old.size), new)
    head, tokens = wide.root.heads[case.head].output.weight, wide.backbone.embed.tokens
    assert head.shape == tokens.shape == (new.size, tokens.shape[1]) and not torch.equal(head, tokens)


def _widened(model: Any, size: int) -> Any:
    """The same model with rows for a whole vocabulary."""
    config = replace(model.config, vocab_size=size)
    made = Model(model.family, config, Network(model.family.build(config)), model.tokenizer)
    made.add_heads(parse_objective("mlm" if model.family.name == "bert" else "lm").objectives)
    return made
