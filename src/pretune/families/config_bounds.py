"""Bounds of the numbers in config.json, by key, for all families.

A number outside its bounds comes from a damaged or malicious file: the model would exhaust the memory, never finish, or
compute NaN. Sizes within bounds are compared with the weights before a model is built (see `pretune.models.loading`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pretune.runtime.errors import PretuneError, quote


@dataclass(frozen=True)
class Bound:
    """A range of numbers with inclusive ends."""

    least: float
    most: float

    def __str__(self) -> str:
        return f"from {self.least:,g} to {self.most:,g}"


LAYERS = Bound(1, 1_000)
COUNT, COUNT_OR_NONE = Bound(1, 1 << 16), Bound(0, 1 << 16)
WIDTH = Bound(1, 1 << 20)
LENGTH, LENGTH_OR_NONE, LENGTH_OR_UNSET = Bound(1, 1 << 26), Bound(0, 1 << 26), Bound(-1, 1 << 26)
TOKEN_ID = Bound(-1, 1 << 31)  # -1: none
PROBABILITY = Bound(0, 1)
EPSILON = Bound(1e-30, 1)
DEVIATION = Bound(0, 1_000)
POSITIVE = Bound(1e-6, 1e12)

# The keys of config.json by the bounds of their numbers.
_KEYS: Mapping[Bound, str] = {
    LAYERS: """
        decoder_layers encoder_layers n_layer n_layers num_decoder_layers num_hidden_groups num_hidden_layers
        num_layers v_num_hidden_layers
    """,
    COUNT: """
        block_repeats block_sizes decoder_attention_heads div_val encoder_attention_heads global_attn_every_n_layers n_head n_heads n_langs
        bi_num_attention_heads num_attention_heads num_hashes num_heads v_num_attention_heads
    """,
    COUNT_OR_NONE: """
        t_biattention_id v_biattention_id attn_type conv_kernel_size highways lang2id local_num_chunks_after local_num_chunks_before
        lsh_num_chunks_after lsh_num_chunks_before num_random_blocks task_type_vocab_size type_vocab_size
    """,
    WIDTH: """
        attention_head_size axial_pos_embds_dim character_size d_embed d_ff d_head d_inner d_kv d_model
        decoder_ffn_dim dim emb_dim embedding_size encoder_ffn_dim feed_forward_size filters hidden_dim hidden_size
        bi_hidden_size v_feature_size v_hidden_size v_intermediate_size v_target_size
        intermediate_size max_characters maxout_size n_embd n_inner num_random_features projection_size
    """,
    LENGTH: """
        attention_window axial_pos_shape block_size bptt cutoffs local_attention local_attn_chunk_length
        lsh_attn_chunk_length max_position_embeddings max_relative_position n_positions num_buckets relative_attention_max_distance
        relative_attention_num_buckets target_vocab_size vocab_size window_size
    """,
    LENGTH_OR_NONE: "attention_size chunk_size_feed_forward hash_seed mem_len",
    LENGTH_OR_UNSET: "clamp_len max_relative_positions position_buckets",
    TOKEN_ID: "bos_token_id cls_token_id decoder_start_token_id eos_token_id pad_token_id sep_token_id",
    PROBABILITY: """
        activation_dropout attention_dropout attention_probs_dropout_prob attn_pdrop dropatt dropout dropout_rate
        embd_pdrop embedding_dropout hidden_dropout hidden_dropout_prob input_dropout mlp_dropout output_dropout
        resid_pdrop v_attention_probs_dropout_prob v_hidden_dropout_prob weight_drop word_dropout
    """,
    Bound(1, 64): "inner_group_num",
    EPSILON: "layer_norm_eps layer_norm_epsilon norm_eps",
    DEVIATION: "axial_norm_std embed_init_std init_std initializer_factor initializer_range",
    POSITIVE: "cell_clip global_rope_theta local_rope_theta proj_clip rope_theta",
}
BOUNDS: Mapping[str, Bound] = {key: bound for bound, keys in _KEYS.items() for key in keys.split()}


def check_bounds(key: str, value: Any, where: str) -> None:
    """Raise an error if a value of config.json has numbers outside the bounds of its key; `where` names the file."""
    if isinstance(value, list | tuple) and len(value) > LAYERS.most:
        raise PretuneError(
            f"{where}: {key} has {len(value):,} entries, but at most {LAYERS.most:,} are allowed; correct the file"
        )
    bound = BOUNDS.get(key)
    if bound is not None and not all(bound.least <= number <= bound.most for number in _numbers(value)):
        raise PretuneError(f"{where}: {key} is {quote(value)}; it must be {bound}")


def count_layers(config: Any) -> int:
    """Return the number of layers in a configuration; for an encoder-decoder, that of its deeper stack."""
    return max((getattr(config, key, 0) or 0 for key, bound in BOUNDS.items() if bound is LAYERS), default=0)


def _numbers(value: Any) -> Iterator[float]:
    """Yield the numbers in a value of config.json, which may be a nested list or mapping."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from _numbers(part)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value
