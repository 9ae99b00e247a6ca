"""No key of config.json is ignored: each changes the output as it does in `transformers`, changes nothing, or is refused by name.

Every key is changed in turn in a tiny model that `transformers` saves; pretune loads it with the same logits, or the message names the
key.
"""

from __future__ import annotations

import importlib
import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from pretune import PretuneError
from pretune.families import FAMILIES
from pretune.models.loading import load, load_model
from tests.support.config_key_checks import check_config_keys, default_config
from tests.support.parity import assert_same, close
from tests.support.transformers_cases import CASES, TINY, Case, edit_config, quick

# Families whose classifiers read additional keys. Longformer's, which needs global attention, is in test_longformer.py.
CLASSIFIERS = [
    name for name in TINY if name not in ("longformer", "reformer", "funnel", "t5", "mt5", "bart", "mbart", "marian")
]
CHOOSERS = ("bert", "mpnet", "electra", "xlnet", "modernbert", "gpt2", "openai-gpt", "big_bird", "xlm")
TAGGERS = ("gpt2",)
ANSWERERS = ("gpt2", "big_bird", "t5", "bart", "mbart")


HEADS = [
    Case(name, next(kind for heads, kind in FAMILIES[name].classes.items() if heads == {head}), head)
    for names, head in ((CLASSIFIERS, "classify"), (CHOOSERS, "choose"), (TAGGERS, "tag"), (ANSWERERS, "answer"))
    for name in names
]


def read_by_transformers(name: str) -> set[str]:
    """Return the config keys that the code of a family reads in `transformers`."""
    from transformers import AutoConfig

    module = type(AutoConfig.for_model(name)).__module__.replace("configuration", "modeling")
    source = inspect.getsource(importlib.import_module(module))
    return {
        *re.findall(r"config\.(\w+)", source),
        *re.findall(r"""(?:get|has)attr\((?:self\.)?config, *["'](\w+)""", source),
    }


@pytest.mark.end_to_end
@pytest.mark.parametrize("name", quick(CASES, ("bert", "modernbert", "gpt2", "t5")))
def test_no_key_of_a_language_model_is_ignored(name: str, tmp_path: Path) -> None:
    check_config_keys(CASES[name], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", HEADS, ids=lambda case: case.kind)
def test_no_key_of_a_head_is_ignored(case: Case, tmp_path: Path) -> None:
    check_config_keys(case, tmp_path)


# Attributes in the code of `transformers` that are not keys of config.json.
NOT_KEYS = {
    "xlnet": {"n_layers"},  # in a converter
    "reformer": {"n_layers", "chunk_length", "num_chunks_after", "num_chunks_before"},  # parts of key names
}
REMOVED = ("transfo-xl", "nezha")  # `transformers` 5 no longer has them
PUBLISHED = [name for name, family in FAMILIES.items() if family.in_transformers and name not in REMOVED]


def test_every_family_in_transformers_is_covered() -> None:
    assert set(TINY) == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_config_key_of_transformers_is_classified(name: str) -> None:
    """Every key is a field, a key with few supported values, or harmless; new keys of new versions must be classified."""
    keys = (default_config(name).keys() | read_by_transformers(name)) - NOT_KEYS.get(name, set())
    methods = {"to_dict", "get_text_config", "use_return_dict"}
    assert FAMILIES[name].unknown_keys(dict.fromkeys(keys - methods, "")) == []


# Defaults that differ from those of `transformers`, and why.
DROPOUT = "attention dropout is off unless requested"
IDS = "ids come from the tokenizer, and are written even if unknown"
DERIVED = "derived from other keys where it is not given"
DEPARTURES = {
    "mem_len": "memory is used in stateful batches",
    "vocab_size": "a value that differs from the embedding is refused",
    **dict.fromkeys(("attention_probs_dropout_prob", "attention_dropout", "attn_pdrop"), DROPOUT),
    **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "pad_token_id"), IDS),
    **dict.fromkeys(
        ("d_head", "num_decoder_layers", "layer_types", "rope_parameters", "max_relative_positions"), DERIVED
    ),
    "decoder_start_token_id": IDS,
    "tie_word_embeddings": "for T5 1.1 and mT5, determined by the tensors",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_defaults_of_missing_keys_match_transformers(name: str) -> None:
    """Config files may omit keys with default values."""
    ours, known = FAMILIES[name].config(), default_config(name)
    for field in fields(ours):
        if field.name in known and field.name not in DEPARTURES:
            value, expected = getattr(ours, field.name), known[field.name]
            assert (list(value) if isinstance(value, tuple) else value) == expected, field.name
    if name in ("roberta", "xlm-roberta", "camembert", "longformer"):  # the offset of positions
        assert ours.pad_token_id == known["pad_token_id"]
    if "tie_word_embeddings" in known and name != "mt5":
        assert FAMILIES[name].is_tied(ours) == (known["tie_word_embeddings"] or name == "reformer")


@pytest.mark.parametrize("name", quick(name for name in PUBLISHED if FAMILIES[name].aliases))
def test_aliases_of_keys_are_read_and_must_not_contradict(name: str, tmp_path: Path) -> None:
    from transformers import AutoConfig

    case = CASES[name]
    reference = case.reference(tmp_path, {})
    expected = case.ours(tmp_path, reference.config)
    aliases = FAMILIES[name].aliases
    listed = AutoConfig.for_model(name).attribute_map
    assert {alias: key for alias, key in listed.items() if key in fields_of(name)}.items() <= aliases.items()
    values = {alias: getattr(reference.config, key) for alias, key in aliases.items()}
    edit_config(tmp_path, **dict.fromkeys(aliases.values()), **values)
    close(case.ours(tmp_path, reference.config), expected)
    for alias, key in aliases.items():
        edit_config(tmp_path, **{key: values[alias] + 1})
        with pytest.raises(PretuneError, match=rf"{alias} is .*, but {key}, which means the same, is"):
            load(tmp_path)
        edit_config(tmp_path, **{key: None})


def fields_of(name: str) -> set[str]:
    return {field.name for field in fields(FAMILIES[name].config)}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            {"glyph_embedding_dim": 1728, "pinyin_map_len": 32},
            "unknown keys for bert, .*: glyph_embedding_dim, pinyin_map_len",
        ),
        (
            {"is_decoder": True},
            r"config\.json: is_decoder true is not supported for bert; use a model with is_decoder false",
        ),
        ({"add_cross_attention": True}, "add_cross_attention true is not supported"),
        ({"position_embedding_type": "relative_key"}, 'position_embedding_type "relative_key" is not supported'),
        ({"auto_map": {"AutoModel": "custom.Model"}}, "auto_map: the model needs custom code"),
        ({"quantization_config": {"load_in_8bit": True}}, "quantization_config: the weights have a quantization"),
        ({"adapters": {"adapters": {"a": "b"}}}, "adapters: adapters are not supported"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads: "),
        ({"hidden_act": "prelu"}, "unknown activation 'prelu'"),
        ({"hidden_size": "768"}, r"config\.json: hidden_size: input should be a valid integer, not '768'"),
        ({"layer_norm_eps": []}, r"layer_norm_eps: input should be a valid number, not \[\]"),
    ],
)
def test_keys_that_may_change_the_output_are_refused_by_name(keys: dict[str, Any], words: str, tmp_path: Path) -> None:
    CASES["bert"].reference(tmp_path, {})
    edit_config(tmp_path, **keys)
    for read in (load, load_model):  # with heads and without
        with pytest.raises(PretuneError, match=words):
            read(tmp_path)


def test_unknown_keys_are_ignored_with_ignore_mismatched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["bert"]
    reference = case.reference(tmp_path, {})
    edit_config(tmp_path, glyph_embedding_dim=1728)
    logged: list[str] = []
    monkeypatch.setattr("pretune.models.loading.log_info", logged.append)
    with pytest.raises(PretuneError, match="glyph_embedding_dim; pass --ignore-mismatched to continue without them"):
        load(tmp_path)
    model = load(tmp_path, ignore_mismatched=True)
    assert len(logged) == 1 and logged[0].endswith("may change its output: glyph_embedding_dim; they are ignored")
    edit_config(tmp_path, glyph_embedding_dim=None)
    close(case.ours(tmp_path, reference.config), case.theirs(reference))
    assert_same(model.root, load(tmp_path).root)
    edit_config(tmp_path, is_decoder=True)  # keys that are known to change the output are never ignored
    with pytest.raises(PretuneError, match="is_decoder"):
        load(tmp_path, ignore_mismatched=True)


# Keys of released config files, without sizes.
REAL: dict[str, dict[str, Any]] = {
    "bert": {
        "_name_or_path": "bert-base", "attention_probs_dropout_prob": 0.1, "classifier_dropout": None, "directionality": "bidi",
        "finetuning_task": "mnli", "gradient_checkpointing": False, "language": "english", "name": "Bert", "output_past": True,
        "pooler_fc_size": 768, "pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3, "pooler_size_per_head": 128,
        "pooler_type": "first_token_transform", "position_embedding_type": "absolute", "pruned_heads": {}, "torch_dtype": "float32",
        "torchscript": False, "use_bfloat16": False, "use_cache": True, "is_decoder": False, "num_labels": 2, "model_max_length": 512,
        "emb_size": 32, "padding": "max_length", "tf_legacy_loss": False, "xla_device": True,
    },
    "albert": {"down_scale_factor": 1, "gap_size": 0, "net_structure_type": 0, "num_memory_blocks": 0, "layers_to_keep": []},
    "distilbert": {"qa_dropout": 0.1, "seq_classif_dropout": 0.2, "tie_weights_": True},
    "electra": {"summary_activation": "gelu", "summary_last_dropout": 0.1, "summary_type": "first", "summary_use_proj": True},
    "ernie": {"enable_recompute": False, "fuse": False, "pool_act": "tanh", "task_id": 0},
    "deberta": {"padding_idx": 0, "pooler_dropout": 0, "pooler_hidden_act": "gelu", "pooler_hidden_size": 32},
    "deberta-v2": {"attention_head_size": 8, "conv_kernel_size": 0, "pooler_hidden_size": 32, "legacy": True},
    "modernbert": {
        "layer_norm_eps": 1e-05, "position_embedding_type": "absolute", "reference_compile": True, "classifier_dropout": 0.0,
        "deterministic_flash_attn": False, "repad_logits_with_grad": False, "sparse_prediction": False, "sparse_pred_ignore_index": -100,
    },
    "longformer": {"attention_mode": "longformer", "ignore_attention_mask": False, "onnx_export": False, "sep_token_id": 2},
    "xlnet": {"bi_data": False, "reuse_len": None, "same_length": False, "untie_r": True, "start_n_top": 5, "end_n_top": 5},
    "xlm": {"bos_index": 0, "eos_index": 1, "share_inout_emb": True, "same_enc_dec": True, "max_vocab": -1, "min_count": 0, "lang_id": 0},
    "openai-gpt": {"n_ctx": 40, "n_special": 0, "predict_special_tokens": True, "summary_type": "cls_index"},
    "gpt2": {"n_ctx": 40, "summary_activation": None, "summary_first_dropout": 0.1, "task_specific_params": {"text-generation": {"max_length": 50}}},
    "t5": {"n_positions": 512, "output_past": True, "task_specific_params": {"translation_en_to_de": {"num_beams": 4}}, "dense_act_fn": "relu"},
    "bart": {
        "_num_labels": 3, "add_bias_logits": False, "add_final_layer_norm": False, "classif_dropout": 0.1, "early_stopping": True,
        "extra_pos_embeddings": 2, "force_bos_token_to_be_generated": True, "forced_bos_token_id": 0, "gradient_checkpointing": False,
        "length_penalty": 2.0, "max_length": 142, "min_length": 56, "no_repeat_ngram_size": 3, "normalize_before": False,
        "normalize_embedding": True, "num_beams": 4, "num_hidden_layers": 2, "prefix": " ", "static_position_embeddings": False,
        "task_specific_params": {}, "save_step": 5,
    },
    "mbart": {"add_final_layer_norm": True, "normalize_before": True, "normalize_embedding": True, "tokenizer_class": "MBart50Tokenizer"},
    "marian": {"bad_words_ids": [[59]], "extra_pos_embeddings": 59, "static_position_embeddings": True, "normalize_embedding": False},
    "reformer": {"chunk_size_lm_head": 0, "num_hidden_layers": 2, "output_past": True, "sinusoidal_pos_embds": False},
}  # fmt: skip


@pytest.mark.parametrize("name", REAL)
def test_keys_of_released_configs_are_accepted(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    reference = case.reference(tmp_path, {})
    expected = case.ours(tmp_path, reference.config)
    edit_config(tmp_path, **REAL[name])
    close(case.ours(tmp_path, reference.config), expected)
