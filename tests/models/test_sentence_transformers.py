"""sentence-transformers folders: vectors match after import and after export."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules.dense import Dense
from sentence_transformers.base.modules.normalize import Normalize
from sentence_transformers.base.modules.transformer import Transformer
from sentence_transformers.sentence_transformer.modules.dropout import Dropout
from sentence_transformers.sentence_transformer.modules.layer_norm import LayerNorm
from sentence_transformers.sentence_transformer.modules.pooling import Pooling
from torch import nn

import pretune as pt
from pretune import PretuneError
from pretune.inference.embed import embed_texts
from pretune.models.loading import load, load_model
from pretune.objectives import parse_objective
from tests.support.tiny_models import random_model, small_tokenizer

TEXTS = [
    "An assignment is a statement",
    "a",
    "The object is a class , and its name is bound",
    "x " * 40,
    "Names Refer To",
]
WIDTH = 16


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a tiny encoder in the Hugging Face layout."""
    folder = tmp_path_factory.mktemp("bert")
    random_model("bert", small_tokenizer("wordpiece"), "mlm").export(folder)
    return folder


def build(encoder: Path, out: Path, *modules: nn.Module, length: int | None = 20, **options: Any) -> Path:
    """Write a folder with sentence-transformers, in its newest layout."""
    torch.manual_seed(0)
    first = Transformer(str(encoder))
    first.max_seq_length = length
    SentenceTransformer(modules=[first, *modules], device="cpu", **options).save(str(out), create_model_card=False)
    return out


def theirs(folder: Path, texts: Iterable[str] = TEXTS, **options: Any) -> np.ndarray[Any, Any]:
    """Return the vectors of sentence-transformers."""
    return np.asarray(SentenceTransformer(str(folder), device="cpu").encode(list(texts), **options))


def same(ours: Any, expected: Any) -> None:
    assert ours.shape == expected.shape
    np.testing.assert_allclose(ours, expected, atol=1e-5, rtol=1e-5)


def edit(path: Path, **changes: Any) -> None:
    """Change a JSON file; None removes a key."""
    content = json.loads(path.read_text()) if path.is_file() else {}
    content = {key: value for key, value in {**content, **changes}.items() if value is not None}
    path.write_text(json.dumps(content))


MODES = ["cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]


@pytest.mark.parametrize("modes", [*MODES, ["cls", "mean"], ["weightedmean", "lasttoken", "max"]])
def test_every_pooling_is_read(bert: Path, tmp_path: Path, modes: Any) -> None:
    folder = build(bert, tmp_path / "st", Pooling(WIDTH, modes))
    expected = theirs(folder)
    same(embed_texts(folder, TEXTS), expected)
    # The export gives the same vectors in sentence-transformers.
    pt.export(folder, out=tmp_path / "ours")
    same(theirs(tmp_path / "ours"), expected)
    same(embed_texts(tmp_path / "ours", TEXTS), expected)


def layers() -> list[nn.Module]:
    """Every kind of module may follow a pooling."""
    torch.manual_seed(1)
    norm = LayerNorm(12)
    nn.init.normal_(norm.norm.weight), nn.init.normal_(norm.norm.bias)
    wide = Dense(2 * WIDTH, 12, bias=False, activation_function=nn.GELU(), use_residual=True)
    return [
        wide,
        norm,
        Dropout(0.3),
        Dense(12, 12, use_residual=True),
        Dense(12, 8, activation_function=None),
        Normalize(),
    ]


@pytest.mark.not_fast
def test_modules_after_the_pooling_are_read_and_written(bert: Path, tmp_path: Path) -> None:
    folder = build(bert, tmp_path / "st", Pooling(WIDTH, ["cls", "max"]), *layers())
    expected = theirs(folder)
    same(embed_texts(folder, TEXTS), expected)
    assert np.allclose(np.linalg.norm(expected, axis=1), 1)
    facts = pt.export(folder, out=tmp_path / "ours").facts
    assert facts["format"] == "sentence-transformers" and facts["pooling"] == "cls+max"
    assert facts["dimension"] == 8 and facts["normalized"] and facts["max_length"] == 20
    same(theirs(tmp_path / "ours"), expected)
    load(folder).save(tmp_path / "run")  # as in a run folder, without the files of sentence-transformers
    same(embed_texts(tmp_path / "run", TEXTS), expected)
    shown = pt.show(tmp_path / "ours").facts["vectors"]
    assert shown == {
        "pooling": "cls+max",
        "dimension": 8,
        "normalized": True,
        "similarity": "cosine",
        "max_length": 20,
    }


@pytest.mark.not_fast
def test_prompts_maximum_length_and_truncated_dimensions_are_read(bert: Path, tmp_path: Path) -> None:
    prompts = {"query": "the name of", "other": "is a class"}
    folder = build(
        bert,
        tmp_path / "st",
        Pooling(WIDTH, ["cls", "mean", "max", "weightedmean", "mean_sqrt_len_tokens"], include_prompt=False),
        Normalize(),
        length=14,
        prompts=prompts,
        default_prompt_name="query",
        truncate_dim=30,
    )
    pt.export(folder, out=tmp_path / "ours")
    for place in (folder, tmp_path / "ours"):
        same(embed_texts(place, TEXTS), theirs(folder))
        same(embed_texts(place, TEXTS, prompt_name="other"), theirs(folder, prompt_name="other"))
        same(embed_texts(place, TEXTS, prompt="an object"), theirs(folder, prompt="an object"))
        same(embed_texts(place, TEXTS, prompt=""), theirs(folder, prompt=""))
    same(theirs(tmp_path / "ours"), theirs(folder))
    assert embed_texts(folder, TEXTS).shape == (len(TEXTS), 30)
    with pytest.raises(PretuneError, match=r"no prompt named 'qery'; did you mean 'query'\?"):
        embed_texts(folder, TEXTS, prompt_name="qery")
    with pytest.raises(PretuneError, match="leaves no room for text"):
        embed_texts(folder, TEXTS, prompt="x " * 30)
    with pytest.raises(PretuneError, match="give one of them"):
        pt.embed(folder, TEXTS, prompt="x", prompt_name="query")


@pytest.mark.not_fast
def test_the_folder_layout_of_older_releases_is_read(bert: Path, tmp_path: Path) -> None:
    """Older layouts have one folder per module, boolean poolings, do_lower_case, and pickled weights."""
    cased = tmp_path / "cased"
    random_model("bert", small_tokenizer("byte-level-bpe"), "mlm").export(cased)
    folder = tmp_path / "st"
    (folder / "1_Pooling").mkdir(parents=True)
    shutil.copytree(cased, folder / "0_Transformer")
    (folder / "config.json").write_text('{"__version__": "0.2.5"}')
    edit(folder / "0_Transformer" / "sentence_roberta_config.json", max_seq_length=9, do_lower_case=True)
    flags = {
        "pooling_mode_cls_token": True,
        "pooling_mode_mean_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": True,
    }
    edit(folder / "1_Pooling" / "config.json", word_embedding_dimension=WIDTH, **flags)
    (folder / "2_Dense").mkdir()
    Dense(2 * WIDTH, 6).save(str(folder / "2_Dense"), safe_serialization=False)
    assert (folder / "2_Dense" / "pytorch_model.bin").is_file()
    modules = [
        {"idx": number, "name": str(number), "path": f"{number}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for number, kind in enumerate(["Transformer", "Pooling", "Dense"])
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    expected = theirs(folder)
    same(embed_texts(folder, TEXTS), expected)
    same(embed_texts(folder, [text.upper() for text in TEXTS]), expected)
    pt.export(folder, out=tmp_path / "ours")  # its tokenizer lowercases
    same(theirs(tmp_path / "ours"), expected)
    assert pt.show(folder).facts["vectors"]["max_length"] == 9


def test_the_default_maximum_length_is_that_of_the_tokenizer_or_the_model(bert: Path, tmp_path: Path) -> None:
    folder = build(bert, tmp_path / "st", Pooling(WIDTH, "mean"), length=10)
    assert "max_seq_length" not in json.loads((folder / "sentence_bert_config.json").read_text())
    assert load_model(folder).longest == 10
    edit(folder / "tokenizer_config.json", model_max_length=10**30)
    assert load_model(folder).longest == 24  # positions
    same(embed_texts(folder, TEXTS), theirs(folder))


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        (
            "sentence_bert_config.json",
            {"transformer_task": "fill-mask"},
            'transformer_task "fill-mask" is not supported',
        ),
        ("sentence_bert_config.json", {"query_length": 4}, "query_length 4 is not supported"),
        (
            "sentence_bert_config.json",
            {"model_args": {"add_pooling_layer": True}},
            "unknown settings add_pooling_layer",
        ),
        ("sentence_bert_config.json", {"new_setting": 1}, "unknown settings new_setting"),
        ("config_sentence_transformers.json", {"model_type": "SparseEncoder"}, "SparseEncoder is not supported"),
        ("config_sentence_transformers.json", {"matryoshka": 1}, "unknown settings matryoshka"),
        ("config_sentence_transformers.json", {"similarity_fn_name": "jaccard"}, "unknown similarity 'jaccard'"),
        ("config_sentence_transformers.json", {"default_prompt_name": "q"}, "no prompt named 'q'"),
        ("1_Pooling/config.json", {"pooling_mode": "median"}, "unsupported pooling_mode 'median'"),
        ("1_Pooling/config.json", {"pooling_mode_middle": True}, "unknown settings pooling_mode_middle"),
        ("2_Dense/config.json", {"activation_function": "my.code.Act"}, "activation my.code.Act is custom code"),
        ("2_Dense/config.json", {"activation_function": "torch.nn.modules.activation.PReLU"}, "activation 'PReLU'"),
        ("2_Dense/config.json", {"module_input_name": "token_embeddings"}, "module_input_name is 'token_embeddings'"),
        ("2_Dense/config.json", {"bias": False}, "implies the tensors"),
        ("2_Dense/config.json", {"out_features": None}, "out_features: input should be a valid integer, not None"),
        ("sentence_bert_config.json", {"max_seq_length": "128"}, "maximum length '128' is not a number"),
        ("2_Dense/config.json", {"in_features": 99}, "expects vectors of size 99, but gets vectors of size 16"),
    ],
)
def test_unsupported_settings_are_refused_by_name(
    bert: Path, tmp_path: Path, file: str, changes: dict[str, Any], message: str
) -> None:
    folder = build(bert, tmp_path / "st", Pooling(WIDTH, "mean"), Dense(WIDTH, 5))
    edit(folder / file, **changes)
    with pytest.raises(PretuneError, match=message):
        embed_texts(folder, TEXTS)


@pytest.mark.parametrize("file", ["modules.json", "1_Pooling/config.json", "config_sentence_transformers.json"])
@pytest.mark.parametrize("content", ["", "3", "[]", '{"a":'])
def test_damaged_files_are_named(bert: Path, tmp_path: Path, file: str, content: str) -> None:
    folder = build(bert, tmp_path / "st", Pooling(WIDTH, "mean"))
    (folder / file).write_text(content)
    with pytest.raises(PretuneError, match=file):
        load(folder)


@pytest.mark.parametrize(
    ("number", "change", "message"),
    [
        (
            1,
            {"type": "sentence_transformers.models.WeightedLayerPooling"},
            "the modules Transformer, WeightedLayerPooling",
        ),
        (2, {"type": "sentence_transformers.models.CNN"}, "unsupported module CNN"),
        (2, {"type": "custom.Mine"}, "custom.Mine is custom code"),
        (1, {"path": "../elsewhere"}, "'../elsewhere' of a module must be inside the folder"),
        (0, {"type": "sentence_transformers.models.StaticEmbedding"}, "the modules StaticEmbedding"),
    ],
)
def test_unsupported_modules_are_refused_by_name(
    bert: Path, tmp_path: Path, number: int, change: dict[str, str], message: str
) -> None:
    folder = build(bert, tmp_path / "st", Pooling(WIDTH, "mean"), Dense(WIDTH, 5))
    modules = json.loads((folder / "modules.json").read_text())
    modules[number] |= change
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(PretuneError, match=message):
        load(folder)


def rows(path: Path) -> Path:
    pairs = [(f"the {x} is bound", f"{x} has a name") for x in ("object", "class", "list", "module", "type", "value")]
    path.write_text("anchor,positive\n" + "".join(f"{a},{b}\n" for a, b in pairs * 3))
    return path


def learn(folder: Path, out: Path, objective: str = "contrast", **options: Any) -> Path:
    """Fine-tune for a few steps."""
    given: dict[str, Any] = {"num_seeds": 1, "report": False, "epochs": 1, "optimizer": pt.Optimizer(lr=1e-2)} | options
    return pt.finetune(folder, rows(out.parent / "rows.csv"), out=out, objective=objective, **given).folder


@pytest.mark.not_fast
def test_contrast_continues_from_the_vectors_of_the_folder(bert: Path, tmp_path: Path) -> None:
    """Pooling, later modules, prompts and maximum length are kept, modules are trained, and exports give the vectors of the run."""
    prompts = {"prompts": {"sts": "the name of"}, "default_prompt_name": "sts"}
    pooling = Pooling(WIDTH, ["max", "cls"], include_prompt=False)
    folder = build(bert, tmp_path / "st", pooling, Dense(2 * WIDTH, 8), Normalize(), length=11, **prompts)
    run = learn(folder, tmp_path / "run")
    before, after = load(folder), load(run)
    weights = [model.root.heads["contrast"].transforms[0].linear.weight for model in (before, after)]
    assert weights[0].shape == (8, 32) and not torch.allclose(*weights)
    assert after.longest == 11 and after.root.heads["contrast"].embedding == before.root.heads["contrast"].embedding
    pt.export(run, out=tmp_path / "out")
    vectors = theirs(tmp_path / "out")
    same(embed_texts(run, TEXTS), vectors)
    assert not np.allclose(vectors, theirs(folder), atol=1e-2)
    # Predicted similarities are those of the vectors: prompts are used in training too.
    answer = pt.predict(run, tmp_path / "rows.csv")[0]
    one, other = embed_texts(run, [answer["anchor"], answer["positive"]])
    assert answer["similarity"] == pytest.approx(float(one @ other), abs=1e-5)


@pytest.mark.not_fast
def test_other_objectives_keep_the_modules_that_apply(
    bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = build(bert, tmp_path / "plain", Pooling(WIDTH, "max"), Normalize(), length=12)
    dense = build(bert, tmp_path / "dense", Pooling(WIDTH, "max"), Dense(WIDTH, 4), length=12)
    for folder in (plain, dense):
        load_model(folder, parse_objective("mlm")).save(tmp_path / f"{folder.name}-mlm")
    same(embed_texts(tmp_path / "plain-mlm", TEXTS), theirs(plain))
    # Without the weights of the dense layer, vectors are the mean again, and that is reported.
    monkeypatch.setenv("PRETUNE_PROGRESS", "plain")
    assert load_model(dense, parse_objective("mlm")).embedding is None
    assert "the layers after pooling are not loaded" in capsys.readouterr().err
    pt.export(dense, format="hf", out=tmp_path / "dense-hf")
    for place in ("dense-mlm", "dense-hf"):
        assert embed_texts(tmp_path / place, TEXTS).shape == (len(TEXTS), WIDTH)
    load(dense).save(tmp_path / "run")
    (tmp_path / "run" / "head.safetensors").unlink()
    with pytest.raises(PretuneError, match="so embeddings would be random"):
        embed_texts(tmp_path / "run", TEXTS)


@pytest.mark.not_fast
def test_classifiers_use_the_pooling_of_the_folder(bert: Path, tmp_path: Path) -> None:
    folder = build(bert, tmp_path / "st", Pooling(WIDTH, "max"), length=12)
    (tmp_path / "labeled.csv").write_text("text,label\n" + "a class,x\nan object,y\n" * 6)
    settings: dict[str, Any] = {"num_seeds": 1, "report": False, "epochs": 1}
    run = pt.finetune(folder, tmp_path / "labeled.csv", out=tmp_path / "run", **settings)
    model = load(run)
    assert model.root.heads["classify"].pooling == "max" and model.longest == 12
    chosen = {"objective": "classify(pooling=cls)", **settings}
    other = pt.finetune(folder, tmp_path / "labeled.csv", out=tmp_path / "other", **chosen)
    assert load(other).root.heads["classify"].pooling == "cls"


@pytest.mark.not_fast
def test_contrast_keeps_its_pooling_in_every_format(bert: Path, tmp_path: Path) -> None:
    """Exports in each layout give the vectors of the run, and further fine-tuning keeps its pooling."""
    run = learn(bert, tmp_path / "run", "contrast(embedding_pooling=cls+weighted_mean, normalize=true)")
    expected = embed_texts(run, TEXTS)
    assert np.allclose(np.linalg.norm(expected, axis=1), 1, atol=1e-5)
    for layout in ("sentence-transformers", "hf"):
        facts = pt.export(run, format=layout, out=tmp_path / layout).facts  # type: ignore[arg-type]
        same(embed_texts(tmp_path / layout, TEXTS), expected)
        assert (tmp_path / layout / "modules.json").is_file() == (layout == "sentence-transformers")
    assert facts["dropped_heads"] == ["contrast"]  # in `transformers`; pretune reads its pooling from config.json
    assert load(learn(run, tmp_path / "again")).root.heads["contrast"].embedding.pooling == (
        "cls",
        "weighted_mean",
    )
    mean = embed_texts(run, TEXTS, pooling="mean")
    assert mean.shape == (len(TEXTS), WIDTH)
    pt.export(run, pooling="mean", out=tmp_path / "mean")
    same(theirs(tmp_path / "mean"), mean)


@pytest.mark.not_fast
@pytest.mark.parametrize("vector", ["cls+last", "mean+max", "mean_sqrt_len+weighted_mean"])
def test_onnx_vectors_match_those_of_the_run(vector: str, bert: Path, tmp_path: Path) -> None:
    run = learn(bert, tmp_path / "run", f"contrast(embedding_pooling={vector}, normalize=true)")
    pt.export(run, format="onnx", out=tmp_path / "onnx")
    same(embed_texts(tmp_path / "onnx", TEXTS), embed_texts(run, TEXTS))


@pytest.mark.not_fast
def test_a_named_contrast_task_has_its_own_vectors(bert: Path, tmp_path: Path) -> None:
    (tmp_path / "labeled.csv").write_text("text,label\n" + "a class,x\nan object,y\n" * 6)
    files = {"near": str(rows(tmp_path / "rows.csv")), "kind": str(tmp_path / "labeled.csv")}
    objective = "near: contrast(embedding_pooling=max) | kind: classify"
    run = pt.finetune(bert, files, out=tmp_path / "run", objective=objective, num_seeds=1, report=False, epochs=1)
    vectors = embed_texts(run.folder, TEXTS)
    same(vectors, embed_texts(run.folder, TEXTS, pooling="max"))
    assert pt.export(run, out=tmp_path / "hf").facts["format"] == "hf"
    facts = pt.export(run, format="sentence-transformers", out=tmp_path / "st").facts
    assert facts["dropped_heads"] == ["kind"]
    same(theirs(tmp_path / "st"), vectors)


def test_vectors_of_a_layer_mix_are_not_exported(bert: Path, tmp_path: Path) -> None:
    run = learn(bert, tmp_path / "run", "contrast(embedding_pooling=max) on mix")
    answer = pt.predict(run, tmp_path / "rows.csv")[0]
    one, other = embed_texts(run, [answer["anchor"], answer["positive"]])
    cosine = float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))
    assert answer["similarity"] == pytest.approx(cosine, abs=1e-5)
    with pytest.raises(
        PretuneError, match="reads several layers, which the sentence-transformers format cannot express"
    ):
        pt.export(run, format="sentence-transformers", out=tmp_path / "st")
    with pytest.raises(PretuneError, match="leave out --layer"):
        embed_texts(run, TEXTS, layer=0)


def test_unsupported_similarities_are_refused_for_training_only(bert: Path, tmp_path: Path) -> None:
    folder = build(bert, tmp_path / "st", Pooling(WIDTH, "cls"), similarity_fn_name="dot")
    same(embed_texts(folder, TEXTS), theirs(folder))
    pt.export(folder, out=tmp_path / "ours")
    assert SentenceTransformer(str(tmp_path / "ours"), device="cpu").similarity_fn_name == "dot"
    with pytest.raises(PretuneError, match="compared by dot, but the task 'contrast' learns cosines"):
        learn(folder, tmp_path / "run")


def test_invalid_export_options_are_refused(bert: Path, tmp_path: Path) -> None:
    vectors: dict[str, Any] = {"format": "sentence-transformers", "out": tmp_path / "out"}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"pooling": "mean", "out": tmp_path / "out"}, "apply only with --format sentence-transformers"),
        ({**vectors, "pooling": "man"}, r"unknown pooling 'man' of a text embedding; did you mean 'mean'\?"),
        ({**vectors, "head": "mlm"}, "--head mlm: a sentence-transformers folder cannot contain this head"),
        ({**vectors, "max_length": 99}, "choose a length from 3 to 24 tokens"),
    ]
    for options, message in cases:
        with pytest.raises(PretuneError, match=message):
            pt.export(bert, **options)
    random_model("t5", small_tokenizer("byte-level-bpe"), "spans").save(tmp_path / "t5")
    with pytest.raises(PretuneError, match="only the encoder of t5"):
        pt.export(tmp_path / "t5", **vectors)
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_without_a_padding_token_gets_one(tmp_path: Path) -> None:
    """GPT-2's tokenizer has none, but sentence-transformers needs one."""
    model = random_model("gpt2", small_tokenizer("byte-level-bpe"), "lm")
    words = small_tokenizer("byte-level-bpe")
    roles = {role: token for role, token in words.role_tokens.items() if role != "padding"}
    model.tokenizer = type(words)(words.backend, roles)
    model.save(tmp_path / "run")
    pt.export(tmp_path / "run", format="sentence-transformers", pooling="last", out=tmp_path / "out")
    same(theirs(tmp_path / "out"), embed_texts(tmp_path / "run", TEXTS, pooling="last"))
