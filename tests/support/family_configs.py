"""Tiny `transformers` configurations of the model families: keyword arguments of `AutoConfig.for_model`."""

from __future__ import annotations

from typing import Any

from pretune.text.tokenizers.training import Kind
from tests.support.seq2seq_parity import IDS

BERT = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 40, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
ROBERTA = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 40, "type_vocab_size": 1, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
MPNET = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 40, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
DISTILBERT = {
    "vocab_size": 60, "dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 40,
    "dropout": 0.0, "attention_dropout": 0.0,
}  # fmt: skip
ELECTRA = {
    "vocab_size": 60, "embedding_size": 24, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 40, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
ALBERT = {
    "vocab_size": 60, "embedding_size": 24, "hidden_size": 32, "num_hidden_layers": 5, "num_attention_heads": 4,
    "intermediate_size": 64, "max_position_embeddings": 40,
}  # fmt: skip
ERNIE = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 40, "hidden_act": "relu", "layer_norm_eps": 1e-5, "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
ERNIE_TASK_IDS = {"use_task_id": True, "task_type_vocab_size": 4}
XLM = {
    "vocab_size": 60, "emb_dim": 32, "n_layers": 3, "n_heads": 4, "max_position_embeddings": 40, "n_langs": 3,
    "dropout": 0.0, "attention_dropout": 0.0,
}  # fmt: skip
XLNET: dict[str, Any] = {
    "vocab_size": 60, "d_model": 32, "n_layer": 3, "n_head": 4, "d_inner": 64, "dropout": 0.0, "layer_norm_eps": 1e-12,
}  # fmt: skip
FUNNEL: dict[str, Any] = {
    "vocab_size": 60, "d_model": 32, "block_sizes": [1, 2, 1], "num_decoder_layers": 1, "n_head": 4, "d_head": 12,
    "d_inner": 48, "hidden_dropout": 0.0, "attention_dropout": 0.0,
}  # fmt: skip
LONGFORMER = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 40, "type_vocab_size": 1, "attention_window": [4, 8, 4], "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
BIG_BIRD = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 60, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
BIG_BIRD_FULL_ATTENTION = {"attention_type": "original_full"}
DEBERTA: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 40, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    "relative_attention": True, "position_biased_input": False, "pos_att_type": "c2p|p2c",
}  # fmt: skip
DEBERTA_V2_ATTENTION = {"share_att_key": True, "norm_rel_ebd": "layer_norm", "position_buckets": 8}
DEBERTAS = {"deberta": DEBERTA, "deberta-v2": DEBERTA | DEBERTA_V2_ATTENTION}
# The window of two tokens to each side is shorter than the sequences; with small thetas, positions differ a lot.
MODERNBERT = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 48,
    "local_attention": 4, "global_rope_theta": 60.0, "local_rope_theta": 7.0,
}  # fmt: skip
MODERNBERT_IDS = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0)
GPT = {"vocab_size": 60, "n_positions": 40, "n_embd": 32, "n_layer": 3, "n_head": 4}
# Six buckets per direction up to a distance of 8, which is shorter than the sequences; heads narrower than the model.
T5 = {
    "vocab_size": 60, "d_model": 32, "d_kv": 6, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4,
    "relative_attention_num_buckets": 12, "relative_attention_max_distance": 8, **IDS,
}  # fmt: skip
T5_GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
T5_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "1.0": ("t5", {}),
    "1.1": ("t5", T5_GATED),
    "mt5": ("mt5", T5_GATED),
    "silu": ("t5", {"feed_forward_proj": "gated-silu"}),
}
BART = {
    "vocab_size": 60, "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 48,
    "decoder_layers": 3, "decoder_attention_heads": 2, "decoder_ffn_dim": 40, "max_position_embeddings": 20,
    "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
# The kind of tokenizer of each encoder family, and its configuration.
ENCODER_CONFIGS: dict[str, tuple[Kind, dict[str, Any]]] = {
    "bert": ("wordpiece", BERT),
    "roberta": ("byte-level-bpe", ROBERTA),
    "xlm-roberta": ("sentencepiece-unigram", ROBERTA),
    "camembert": ("sentencepiece-unigram", ROBERTA),
    "mpnet": ("wordpiece", MPNET),
    "distilbert": ("wordpiece", DISTILBERT),
    "electra": ("wordpiece", ELECTRA),
    "albert": ("sentencepiece-unigram", ALBERT),
    "ernie": ("wordpiece", ERNIE | ERNIE_TASK_IDS),
    "xlm": ("bpe", XLM),
    "xlnet": ("sentencepiece-unigram", XLNET),
    "big_bird": ("sentencepiece-bpe", BIG_BIRD | BIG_BIRD_FULL_ATTENTION),
    "longformer": ("byte-level-bpe", LONGFORMER),
    "deberta": ("byte-level-bpe", DEBERTAS["deberta"]),
    "deberta-v2": ("sentencepiece-unigram", DEBERTAS["deberta-v2"]),
    "modernbert": ("byte-level-bpe", MODERNBERT),
}
