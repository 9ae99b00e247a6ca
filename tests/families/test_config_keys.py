"""No key of config.json is ignored: each changes the output as it does in `transformers`, changes nothing, or is refused by name.

Every key is changed in turn in a tiny model that `transformers` makes and saves; loaded by us it gives the same logits, or the
message names the key.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from torch import Tensor

import pretune as pt
from pretune import PretuneError
from pretune.families import FAMILIES
from pretune.models.loading import load_model
from tests.families.decoders import test_gpt
from tests.families.encoder_decoders import test_bart, test_t5
from tests.families.encoders import (
    test_albert,
    test_bert,
    test_big_bird,
    test_deberta,
    test_distilbert,
    test_electra,
    test_ernie,
    test_longformer,
    test_modernbert,
    test_mpnet,
    test_roberta,
    test_xlm,
    test_xlnet,
)
from tests.support.parity import Ragged, assert_same, close

LOWEST = 12  # no token of a batch is one of the special ones, whichever these are
MARIAN = test_bart.SMALL | {"decoder_vocab_size": 60}
REFORMER = {
    "vocab_size": 60, "hidden_size": 32, "num_attention_heads": 2, "attention_head_size": 12, "feed_forward_size": 40,
    "attn_layers": ["local", "local"], "local_attn_chunk_length": 4, "axial_pos_shape": [4, 12], "hash_seed": 3,
    "axial_pos_embds_dim": [12, 20], "max_position_embeddings": 48, "is_decoder": True,
}  # fmt: skip
GPT = test_gpt.SMALL | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
# Family → what its tiny models are, the class that predicts tokens, the objective it is with us.
TINY: dict[str, tuple[dict[str, Any], str, str]] = {
    "bert": (test_bert.SMALL, "BertForMaskedLM", "mlm"),
    "roberta": (test_roberta.SMALL, "RobertaForMaskedLM", "mlm"),
    "xlm-roberta": (test_roberta.SMALL, "XLMRobertaForMaskedLM", "mlm"),
    "camembert": (test_roberta.SMALL, "CamembertForMaskedLM", "mlm"),
    "mpnet": (test_mpnet.SMALL, "MPNetForMaskedLM", "mlm"),
    "distilbert": (test_distilbert.SMALL, "DistilBertForMaskedLM", "mlm"),
    "electra": (test_electra.SMALL, "ElectraForMaskedLM", "mlm"),
    "albert": (test_albert.SMALL, "AlbertForMaskedLM", "mlm"),
    "ernie": (test_ernie.SMALL | test_ernie.TASKS, "ErnieForMaskedLM", "mlm"),
    "xlm": (test_xlm.SMALL, "XLMWithLMHeadModel", "mlm"),
    "xlnet": (test_xlnet.SMALL, "XLNetLMHeadModel", "plm"),
    "longformer": (test_longformer.SMALL, "LongformerForMaskedLM", "mlm"),
    "big_bird": (test_big_bird.SMALL | test_big_bird.FULL, "BigBirdForMaskedLM", "mlm"),
    "deberta": (test_deberta.SMALLS["deberta"], "DebertaForMaskedLM", "mlm"),
    "deberta-v2": (test_deberta.SMALLS["deberta-v2"], "DebertaV2ForMaskedLM", "mlm"),
    "modernbert": (test_modernbert.SMALL | test_modernbert.IDS, "ModernBertForMaskedLM", "mlm"),
    "openai-gpt": (GPT, "OpenAIGPTLMHeadModel", "lm"),
    "gpt2": (GPT, "GPT2LMHeadModel", "lm"),
    "reformer": (REFORMER, "ReformerModelWithLMHead", "lm"),
    "t5": (test_t5.SMALL, "T5ForConditionalGeneration", "spans"),
    "mt5": (test_t5.SMALL, "MT5ForConditionalGeneration", "spans"),
    "bart": (test_bart.SMALL, "BartForConditionalGeneration", "spans"),
    "mbart": (test_bart.SMALL, "MBartForConditionalGeneration", "spans"),
    "marian": (MARIAN, "MarianMTModel", "spans"),
}
# Heads for texts, which read keys of their own. Which tokens Longformer's sees whole, a column says: see test_longformer.
CLASSIFIERS = [name for name in TINY if name not in ("longformer", "reformer", "t5", "mt5", "bart", "mbart", "marian")]
CHOOSERS = ("bert", "mpnet", "electra", "xlnet", "modernbert", "gpt2", "openai-gpt", "big_bird", "xlm")
TAGGERS = ("gpt2",)
ANSWERERS = ("gpt2", "big_bird", "t5", "bart", "mbart")
# Keys that `transformers` reads where a file has them, but that its configurations do not list; and older ones.
UNLISTED: dict[str, list[Any]] = {
    "attention_head_size": [16],
    "conv_groups": [2],
    "conv_kernel_size": [3],
    "embedding_size": [16],
    "head_dim": [16],
    "position_embedding_type": ["relative_key", "relative_key_query"],
    "scale_decoder_outputs": [False, True],
    "share_att_key": [False],
    "sinusoidal_pos_embds": [True],
    "summary_proj_to_labels": [True],
    "talking_head": [True],
    "untie_r": [False],
}
# Other values of keys whose type tells none.
VALUES: dict[str, list[Any]] = {
    "activation": ["relu", "mish", "quick_gelu"],
    "afn": ["relu", "swish"],
    "attention_type": ["block_sparse"],
    "attn_type": ["uni"],
    "classifier_activation": ["relu", "tanh"],
    "classifier_pooling": ["mean"],
    "conv_act": ["gelu"],
    "d_head": [12],
    "feed_forward_proj": ["gated-gelu", "gated-relu", "gelu_new"],
    "local_num_chunks_before": [2, 0],  # there are three
    "n_inner": [24],
    "norm_rel_ebd": ["none"],
    "pos_att_type": ["c2p", "p2c", "p2c|c2p"],
    "problem_type": ["multi_label_classification", "regression"],
    "summary_activation": ["tanh", "relu"],
    "summary_type": ["mean", "first", "last"],
    "dense_act_fn": ["relu", "gelu_new", "silu"],
    **{
        key: ["relu", "gelu_pytorch_tanh", "prelu"]
        for key in ("hidden_act", "hidden_activation", "activation_function", "ff_activation")
    },
}


def quick(names: Iterable[str], few: Collection[str] = ("bert", "albert", "gpt2", "t5", "bart")) -> list[Any]:
    """Names of families to walk over; all but a few with those tests that take minutes."""
    return [name if name in few else pytest.param(name, marks=pytest.mark.slow) for name in names]


@dataclass(frozen=True)
class Case:
    """A class of `transformers`, and what it is with us."""

    family: str
    kind: str
    head: str

    @property
    def tiny(self) -> dict[str, Any]:
        return dict(TINY[self.family][0])

    @property
    def seq2seq(self) -> bool:
        return bool(FAMILIES[self.family].template.target)

    def peer(self, folder: Path, changes: dict[str, Any]) -> Any:
        """A model of `transformers` in a folder: random norms and biases too, so that nothing agrees by chance."""
        import transformers

        config = transformers.AutoConfig.for_model(self.family, **(self.tiny | changes))
        peer = getattr(transformers, self.kind)(config).eval()
        torch.manual_seed(0)
        for parameter in peer.parameters():
            if parameter.requires_grad:
                torch.nn.init.normal_(parameter, std=0.2)
        if self.family == "reformer":  # `transformers` keeps the bias of its head, but does not add it
            torch.nn.init.zeros_(peer.lm_head.bias)
        peer.save_pretrained(folder)
        return peer

    def batches(self, config: Any) -> list[Ragged]:
        """What the model reads, and for an encoder-decoder what its decoder does."""
        padding = config.pad_token_id or 0
        segments = getattr(config, "type_vocab_size", 2 if self.family == "xlnet" else 0)
        columns = {"segment": ("token_type_ids", 2)} if segments > 1 else {}
        lengths = (12, 12) if self.family == "reformer" else (7, 12, 1, 5)  # whose chunks would see padding there
        first = Ragged.make(60, lengths, 0, LOWEST, padding, columns, left=self.family == "xlnet")
        return [first, Ragged.make(60, (3, 6, 9, 1), 1, LOWEST, padding, {})] if self.seq2seq else [first]

    def theirs(self, peer: Any) -> Tensor:
        batches = self.batches(peer.config)
        inputs = batches[0].inputs
        if self.seq2seq:
            inputs |= {f"decoder_{key}": value for key, value in batches[1].inputs.items()}
        with torch.no_grad():
            if self.head == "choose" and self.kind.endswith("DoubleHeadsModel"):
                last = batches[0].attention_mask.sum(1) - 1
                return peer(batches[0].input_ids[None], mc_token_ids=last[None]).mc_logits[0][:, None]  # type: ignore[no-any-return]
            if self.head == "choose":  # all sequences are the choices of one example
                return peer(**{key: value[None] for key, value in inputs.items()}).logits[0][:, None]  # type: ignore[no-any-return]
            if self.head == "answer":
                # Without a question, whose tokens BigBird masks.
                asked = {"question_lengths": torch.zeros(4, 1)} if self.family == "big_bird" else {}
                out = peer(**inputs, **asked)
                return batches[-1].flat(torch.stack([out.start_logits, out.end_logits], -1))
            logits = peer(**inputs).logits
        return logits if self.head == "classify" else batches[-1].flat(logits)

    def ours(self, folder: Path, config: Any) -> Tensor:
        model = pt.load(folder)
        model.root.eval().requires_grad_(False)
        packed = [batch.packed for batch in self.batches(config)]
        states, head = model.backbone(*packed).last, model.root.heads[self.head]
        if self.head in ("classify", "choose"):
            out = head(states, packed[-1])
        elif self.head in ("tag", "answer"):
            out = head(states)
        else:
            out = head(states, model.backbone.embed.tokens)
        assert not model.untrained and not model.skipped_head_tensors
        return out  # type: ignore[no-any-return]


CASES = {name: Case(name, kind, head) for name, (_, kind, head) in TINY.items()}
HEADS = [
    Case(name, next(kind for heads, kind in FAMILIES[name].classes.items() if heads == {head}), head)
    for names, head in ((CLASSIFIERS, "classify"), (CHOOSERS, "choose"), (TAGGERS, "tag"), (ANSWERERS, "answer"))
    for name in names
]


def theirs(name: str) -> dict[str, Any]:
    """The keys of a family in `transformers`, by their defaults."""
    from transformers import AutoConfig

    return AutoConfig.for_model(name).to_dict()  # type: ignore[no-any-return]


def others(key: str, value: Any) -> list[Any]:
    """Plausible other values of a key."""
    if key in VALUES:
        return [other for other in VALUES[key] if other != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, 2 * value, value + 4, max(value // 2, 1)]
    if isinstance(value, float):
        return [2 * value + 0.1, value / 2]
    return ["another"] if isinstance(value, str) else [3, 0.3, True] if value is None else []


def changes(case: Case) -> Iterator[tuple[str, list[Any]]]:
    """Keys, each with values to try until `transformers` takes one."""
    known = theirs(case.family) | case.tiny
    for key, value in known.items():
        if key not in ("model_type", "transformers_version", "architectures", "_name_or_path", "dtype", "return_dict"):
            yield key, others(key, value)
    for key, values in UNLISTED.items():
        if key not in known:
            yield key, values


def read_by_transformers(name: str) -> set[str]:
    """The keys that the code of a family asks its configuration for."""
    from transformers import AutoConfig

    module = type(AutoConfig.for_model(name)).__module__.replace("configuration", "modeling")
    source = inspect.getsource(importlib.import_module(module))
    return {
        *re.findall(r"config\.(\w+)", source),
        *re.findall(r"""(?:get|has)attr\((?:self\.)?config, *["'](\w+)""", source),
    }


def accepted(case: Case, key: str, values: list[Any], folder: Path) -> str:
    """What becomes of a key: "same" logits as those of `transformers`, "refused" by name, or "nothing" that it takes."""
    outcome = "nothing"
    for value in values:
        place = Path(mkdtemp(dir=folder))  # whose name does not name the key
        try:
            peer = case.peer(place, {key: value})
            expected = case.theirs(peer)
        except Exception:  # any: a value that does not fit the others
            continue
        try:
            ours = case.ours(place, peer.config)
        except PretuneError as refusal:
            if key not in str(refusal) and repr(value) not in str(refusal):
                raise AssertionError(f"{key}={value!r} is refused without its name") from refusal
            outcome = "refused" if outcome == "nothing" else outcome
            continue
        difference = (ours - expected).abs().max().item() if ours.shape == expected.shape else float("inf")
        assert difference < 1e-4, f"{key}={value!r}"
        outcome = "same"
    return outcome


def check(case: Case, folder: Path) -> None:
    family = FAMILIES[case.family]
    peer = case.peer(folder / "as it is", {})
    close(case.ours(folder / "as it is", peer.config), case.theirs(peer))
    outcomes = {key: accepted(case, key, values, folder) for key, values in changes(case)}
    refused = {key for key, outcome in outcomes.items() if outcome == "refused"}
    # What the family says of itself, or does not know; without ties, encoder and decoder have token vectors of their own.
    untied = {"tie_word_embeddings"} if case.seq2seq else set()
    assert refused <= {*family.supported, *family.unknown_keys(dict.fromkeys(outcomes, "")), *untied}
    taken = {key for key, outcome in outcomes.items() if outcome == "same"}
    assert len(taken) >= 0.5 * len(outcomes)


@pytest.mark.parametrize("name", quick(CASES, ("bert", "modernbert", "gpt2", "t5")))
def test_no_key_of_a_language_model_is_ignored(name: str, tmp_path: Path) -> None:
    check(CASES[name], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", HEADS, ids=lambda case: case.kind)
def test_no_key_of_a_head_is_ignored(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


# Names in the code of `transformers` that are no keys of config.json.
NOT_KEYS = {
    "xlnet": {"n_layers"},  # of a converter
    "reformer": {"n_layers", "chunk_length", "num_chunks_after", "num_chunks_before"},  # parts of names
}
PUBLISHED = [name for name, family in FAMILIES.items() if family.in_transformers and name != "transfo-xl"]


def test_all_families_that_transformers_has_are_here() -> None:
    assert set(TINY) == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_key_that_transformers_lists_or_reads_is_known(name: str) -> None:
    """A field of ours, a key with few values, or harmless: those of new versions must be classified too."""
    keys = (theirs(name).keys() | read_by_transformers(name)) - NOT_KEYS.get(name, set())
    methods = {"to_dict", "get_text_config", "use_return_dict"}
    assert FAMILIES[name].unknown_keys(dict.fromkeys(keys - methods, "")) == []


# Defaults of ours that differ from those of `transformers`, and why.
DROPOUT = "dropout of attention is off unless asked for"
IDS = "ids are the tokenizer's, and written even if unknown"
DERIVED = "derived from other keys where it is not given"
DEPARTURES = {
    "mem_len": "a memory is at work where batches go on from one another",
    "vocab_size": "one that is not that of the embedding is refused",
    **dict.fromkeys(("attention_probs_dropout_prob", "attention_dropout", "attn_pdrop"), DROPOUT),
    **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id", "pad_token_id"), IDS),
    **dict.fromkeys(
        ("d_head", "num_decoder_layers", "layer_types", "rope_parameters", "max_relative_positions"), DERIVED
    ),
    "decoder_start_token_id": IDS,
    "tie_word_embeddings": "of T5 1.1 and mT5, by the tensors",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_key_that_is_not_there_is_what_transformers_takes_it_for(name: str) -> None:
    """Files leave out what is the default."""
    ours, known = FAMILIES[name].config(), theirs(name)
    for field in fields(ours):
        if field.name in known and field.name not in DEPARTURES:
            value, expected = getattr(ours, field.name), known[field.name]
            assert (list(value) if isinstance(value, tuple) else value) == expected, field.name
    if name in ("roberta", "xlm-roberta", "camembert", "longformer"):  # where positions start
        assert ours.pad_token_id == known["pad_token_id"]
    if "tie_word_embeddings" in known and name != "mt5":
        assert FAMILIES[name].is_tied(ours) == (known["tie_word_embeddings"] or name == "reformer")


def change(folder: Path, **keys: Any) -> None:
    """Keys of config.json replaced, added or, by None, taken away."""
    file = folder / "config.json"
    content = json.loads(file.read_text()) | keys
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


@pytest.mark.parametrize("name", quick(name for name in PUBLISHED if FAMILIES[name].aliases))
def test_other_names_of_keys_are_read_and_must_not_contradict(name: str, tmp_path: Path) -> None:
    from transformers import AutoConfig

    case = CASES[name]
    peer = case.peer(tmp_path, {})
    expected = case.ours(tmp_path, peer.config)
    aliases = FAMILIES[name].aliases
    listed = AutoConfig.for_model(name).attribute_map
    assert {alias: key for alias, key in listed.items() if key in fields_of(name)}.items() <= aliases.items()
    said = {alias: getattr(peer.config, key) for alias, key in aliases.items()}
    change(tmp_path, **dict.fromkeys(aliases.values()), **said)
    close(case.ours(tmp_path, peer.config), expected)
    for alias, key in aliases.items():
        change(tmp_path, **{key: said[alias] + 1})
        with pytest.raises(PretuneError, match=rf"{alias} is .*, but {key}, which means the same, is"):
            pt.load(tmp_path)
        change(tmp_path, **{key: None})


def fields_of(name: str) -> set[str]:
    return {field.name for field in fields(FAMILIES[name].config)}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (
            {"glyph_embedding_dim": 1728, "pinyin_map_len": 32},
            "unknown keys for bert, .*: glyph_embedding_dim, pinyin_map_len",
        ),
        ({"is_decoder": True}, r"config\.json: is_decoder true is not supported for bert; only false"),
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
def test_what_may_change_the_output_is_refused_by_name(keys: dict[str, Any], words: str, tmp_path: Path) -> None:
    CASES["bert"].peer(tmp_path, {})
    change(tmp_path, **keys)
    for read in (pt.load, load_model):  # with heads and without
        with pytest.raises(PretuneError, match=words):
            read(tmp_path)


def test_unknown_keys_can_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["bert"]
    peer = case.peer(tmp_path, {})
    change(tmp_path, glyph_embedding_dim=1728)
    said: list[str] = []
    monkeypatch.setattr("pretune.models.loading.log_info", said.append)
    with pytest.raises(PretuneError, match="glyph_embedding_dim; pass --partial to continue without them"):
        pt.load(tmp_path)
    model = pt.load(tmp_path, partial=True)
    assert len(said) == 1 and said[0].endswith("may change its output: glyph_embedding_dim; they are ignored")
    change(tmp_path, glyph_embedding_dim=None)
    close(case.ours(tmp_path, peer.config), case.theirs(peer))
    assert_same(model.root, pt.load(tmp_path).root)
    change(tmp_path, is_decoder=True)  # what is known to change the output is not left out
    with pytest.raises(PretuneError, match="is_decoder"):
        pt.load(tmp_path, partial=True)


# As the released files have them, by what is written in their repositories; sizes are left out.
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
def test_keys_of_released_files_are_taken(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    peer = case.peer(tmp_path, {})
    expected = case.ours(tmp_path, peer.config)
    change(tmp_path, **REAL[name])
    close(case.ours(tmp_path, peer.config), expected)
