"""Model folders of other programs: single files or shards, safetensors or pickles, complete or not."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import pretune as pt
from pretune import PretuneError
from pretune.models.loading import load, load_model
from pretune.models.weight_files import PICKLE_FILE, WEIGHTS_FILE, parse_size, read_weights, write_weights
from tests.support.cli import run_command
from tests.support.family_configs import BERT
from tests.support.parity import assert_same
from tests.support.tiny_models import save_random_model


def reference(kind: str = "BertForMaskedLM", **sizes: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    return getattr(transformers, kind)(transformers.BertConfig(**{**BERT, **sizes})).eval()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Save a model with `transformers`."""
    reference().save_pretrained(tmp_path / "reference")
    return tmp_path / "reference"


def change(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Replace, add or, with None, remove tensors of a checkpoint."""
    content = load_file(folder / WEIGHTS_FILE) | tensors
    save_file({name: tensor for name, tensor in content.items() if tensor is not None}, folder / WEIGHTS_FILE)


def test_sharded_weights_match_a_single_file(folder: Path, tmp_path: Path) -> None:
    reference().save_pretrained(tmp_path / "shards", max_shard_size="30KB")
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 2
    assert_same(load(folder).root, load(tmp_path / "shards").root)
    index = tmp_path / "shards" / f"{WEIGHTS_FILE}.index.json"
    shard = next(iter(json.loads(index.read_text())["weight_map"].values()))
    (tmp_path / "shards" / shard).rename(tmp_path / "elsewhere")
    with pytest.raises(PretuneError, match=rf"{shard}: there is no such file"):
        load(tmp_path / "shards")
    index.write_text(json.dumps({"weight_map": {"a": "../elsewhere"}}))
    with pytest.raises(PretuneError, match="must be the name of a file in the same folder"):
        load(tmp_path / "shards")
    index.write_text("{}")
    with pytest.raises(PretuneError, match=r"index\.json: the file is not an index of shards"):
        load(tmp_path / "shards")


def test_written_shards_load_in_pretune_and_transformers(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM

    model = load(folder)
    model.export(tmp_path / "out", shard=20_000)
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 2 and all(file.name.endswith(f"-of-{len(files):05}.safetensors") for file in files)
    assert_same(model.root, load(tmp_path / "out").root)
    theirs, report = AutoModelForMaskedLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert torch.equal(theirs.get_input_embeddings().weight, model.backbone.embed.tokens)
    model.export(tmp_path / "out")  # in one file again: no shard is left
    assert [file.name for file in (tmp_path / "out").glob("model*")] == [WEIGHTS_FILE]


def test_a_tensor_larger_than_a_shard_gets_its_own_shard(tmp_path: Path) -> None:
    tensors = {name: torch.full((size,), float(size)) for name, size in (("a", 2), ("b", 100), ("c", 3), ("d", 4))}
    assert len(write_weights(tmp_path, tensors, shard=40)) == 3
    again = read_weights(tmp_path)
    assert again.keys() == tensors.keys() and all(torch.equal(again[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize(("text", "size"), [("2GB", 2 * 10**9), ("1.5 kb", 1500), ("7", 7)])
def test_shard_sizes_with_units_are_parsed(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "much", "0", "-3MB", "2TB"])
def test_invalid_shard_sizes_are_refused(text: str) -> None:
    with pytest.raises(PretuneError, match="is not a size"):
        parse_size(text)


class Harmful:
    def __reduce__(self) -> Any:
        return (print, ("this must never be printed",))


def test_a_pickle_of_tensors_is_read(folder: Path) -> None:
    expected = load(folder)
    tensors = load_file(folder / WEIGHTS_FILE)
    (folder / WEIGHTS_FILE).unlink()
    torch.save(tensors, folder / PICKLE_FILE)
    assert_same(expected.root, load(folder).root)
    first = dict(list(tensors.items())[:5])
    torch.save(first, folder / "pytorch_model-00001-of-00002.bin")
    torch.save({n: t for n, t in tensors.items() if n not in first}, folder / "pytorch_model-00002-of-00002.bin")
    places = {name: f"pytorch_model-0000{1 if name in first else 2}-of-00002.bin" for name in tensors}
    (folder / PICKLE_FILE).unlink()
    (folder / f"{PICKLE_FILE}.index.json").write_text(json.dumps({"weight_map": places}))
    assert_same(expected.root, load(folder).root)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"a": Harmful()}, "more than plain tensors"),
        ({"model": {"a": torch.zeros(1)}, "epoch": 3}, "holds dict, int besides named tensors"),
        ([torch.zeros(1)], "holds list besides named tensors"),
        ({1: torch.zeros(1)}, "holds int besides"),
    ],
)
def test_a_pickle_of_other_objects_is_refused(
    content: Any, words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / WEIGHTS_FILE).unlink()
    torch.save(content, folder / PICKLE_FILE)
    with pytest.raises(PretuneError, match=rf"pytorch_model\.bin: .*{words}"):
        load(folder)
    (folder / PICKLE_FILE).write_bytes(pickle.dumps(content) if not isinstance(content, list) else b"\x80\x04nonsense")
    with pytest.raises(PretuneError, match=r"pytorch_model\.bin"):
        load(folder)
    assert "never" not in capsys.readouterr().out


def test_damaged_pickles_and_folders_without_weights_are_refused(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS_FILE)
    (folder / WEIGHTS_FILE).unlink()
    with pytest.raises(
        PretuneError,
        match=r"there are no weights in model\.safetensors or pytorch_model\.bin",
    ):
        load(folder)
    (folder / "tf_model.h5").touch()
    with pytest.raises(PretuneError, match=r"convert tf_model\.h5 to one of these formats first"):
        load(folder)
    torch.save(tensors, folder / PICKLE_FILE)
    whole = (folder / PICKLE_FILE).read_bytes()
    for damaged in (b"", whole[:200], whole[:-100], b"version https://git-lfs.github.com/spec/v1\n"):
        (folder / PICKLE_FILE).write_bytes(damaged)
        with pytest.raises(PretuneError, match=r"pytorch_model\.bin"):
            load(folder)


def test_all_mismatched_tensors_are_listed_in_one_error(folder: Path) -> None:
    layer = "bert.encoder.layer.1.attention.self"
    change(
        folder,
        **{
            f"{layer}.key.bias": None,
            f"{layer}.query.weight": torch.zeros(31, 30),
            "bert.embeddings.position_embeddings.weight": torch.zeros(8, 32),
            "bert.adapter.weight": torch.zeros(2),
        },
    )
    with pytest.raises(PretuneError) as error:
        load(folder)
    assert str(error.value) == (
        f"{folder}: tensors of the wrong shape: bert.embeddings.position_embeddings.weight is (8, 32), not (40, 32), "
        f"{layer}.query.weight is (31, 30), not (32, 32); tensors missing: {layer}.key.bias; "
        "unknown tensors for bert: bert.adapter.weight; pass --ignore-mismatched to continue without them"
    )


def test_missing_tensors_of_a_partial_model_are_initialized_reproducibly(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = load(folder).root.tensors()
    change(folder, **{"bert.embeddings.position_embeddings.weight": torch.zeros(8, 32)})
    logged: list[str] = []
    monkeypatch.setattr("pretune.models.loading.log_info", logged.append)
    first, second = (load(folder, ignore_mismatched=True) for _ in range(2))
    assert_same(first.root, second.root)
    assert first.untrained == ["backbone.embed.positions.weight"]
    assert (
        "position_embeddings.weight is (8, 32), not (40, 32); missing parameters are initialized randomly" in logged[0]
    )
    different = [name for name, tensor in first.root.tensors().items() if not torch.equal(tensor, whole[name])]
    assert different == first.untrained


def test_errors_about_transposed_matrices_give_the_published_shape(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2, n_positions=20)).save_pretrained(tmp_path)
    change(tmp_path, **{"transformer.h.0.mlp.c_fc.weight": torch.zeros(64, 16)})
    with pytest.raises(PretuneError, match=r"c_fc\.weight is \(64, 16\), not \(16, 64\)"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("kind", "heads"),
    [
        ("BertModel", []),
        ("BertForMaskedLM", ["mlm"]),
        ("BertForPreTraining", ["mlm", "nsp"]),
        ("BertForSequenceClassification", ["classify"]),
        ("BertForTokenClassification", ["tag"]),
        ("BertForQuestionAnswering", ["answer"]),
        ("BertForMultipleChoice", ["choose"]),
    ],
)
def test_published_models_load_with_their_heads(kind: str, heads: list[str], tmp_path: Path) -> None:
    model = reference(kind)
    model.save_pretrained(tmp_path)
    ours = load(tmp_path)
    assert isinstance(ours, pt.Model)
    assert list(ours.root.heads) == heads
    assert not ours.untrained
    assert ours.labels == (["LABEL_0", "LABEL_1"] if heads in (["classify"], ["tag"]) else [])


def test_the_error_for_an_unknown_family_lists_the_known_ones(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "unheard-of"}))
    with pytest.raises(PretuneError, match=r"unknown model family 'unheard-of'; known: albert, bart, bert, .*, xlm-r"):
        load(folder)


@pytest.mark.end_to_end
def test_commands_continue_with_ignore_mismatched(folder: Path, tmp_path: Path) -> None:
    change(folder, **{"bert.adapter.weight": torch.zeros(2)})
    command = ["export", folder, "--out", tmp_path / "whole"]
    refused = run_command(*command, check=False)
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1 and "unknown tensors for bert: bert.adapter.weight" in refused.stderr
    assert not (tmp_path / "whole").exists()
    assert run_command(*command, "--ignore-mismatched", "--json").json()["class"] == "BertForMaskedLM"
    assert_same(load(folder, ignore_mismatched=True).root, load(tmp_path / "whole").root)


@pytest.mark.not_fast
def test_every_verb_that_reads_a_model_accepts_ignore_mismatched(tmp_path: Path, english: list[str]) -> None:
    model, rows, notes = (tmp_path / name for name in ("model", "rows.csv", "notes.txt"))
    save_random_model(model, "bert", "mlm")
    change(model, **{"bert.adapter.weight": torch.zeros(2)})
    rows.write_text("\n".join(["text,label", *["good,yes", "bad,no"] * 4]), encoding="utf-8")
    notes.write_text("\n\n".join(english[0].split(". ")[:40]), encoding="utf-8")
    few: dict[str, Any] = {"budget": pt.Budget(steps=1), "batch": pt.Batching(tokens=64, max_length=16)}
    verbs: dict[str, Any] = {
        "fill": lambda **more: pt.fill(model, ["a [MASK]"], **more),
        "embed": lambda **more: pt.embed(model, ["a"], **more),
        "search": lambda **more: pt.search(model, ["a"], "b", **more),
        "neighbors": lambda **more: pt.neighbors(model, "of", "one of", max_words=50, **more),
        "finetune": lambda **more: pt.finetune(
            model, rows, out=tmp_path / "task", budget=pt.Budget(steps=1), **more, num_seeds=1
        ),
        "pretrain": lambda **more: pt.pretrain(model, notes, tokenizer=model, out=tmp_path / "run", **few, **more),
        "adapt": lambda **more: pt.adapt(model, notes, out=tmp_path / "adapted", **few, **more),
    }
    for name, verb in verbs.items():
        with pytest.raises(PretuneError, match=r"unknown tensors for bert: bert\.adapter\.weight"):
            verb()
        for begun in ("run", "adapted"):
            shutil.rmtree(tmp_path / begun, ignore_errors=True)
        assert verb(ignore_mismatched=True), name


def test_attention_dropout_of_a_checkpoint_is_not_applied(tmp_path: Path) -> None:
    """No fast attention kernel has it; config.json keeps its value."""
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        attention_probs_dropout_prob=0.3,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert [m.dropout for m in model.root.modules() if isinstance(getattr(m, "dropout", None), float)] == [0.0]
    assert model.config.attention_probs_dropout_prob == 0.3  # type: ignore[attr-defined]
