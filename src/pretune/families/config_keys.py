"""Keys of config.json with the same meaning in all families: keys that do not change the output, and unsupported keys.

A family accounts for each key of its config.json: as a field of its configuration, as a key with supported values
(`supported`), or as a key without effect (`harmless`). Any other key is an error, since it may change the output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# Read by `pretune.models`: the family and the heads of a folder, and the names of the classes.
DESCRIPTIVE_KEYS = frozenset(
    {"architectures", "model_type", "id2label", "label2id", "num_labels", "problem_type", "pretune"}
)

# Maps the reason why keys do not change the output to the keys.
_REASONS: Mapping[str, str] = {
    "describes the origin of the file": """
        _commit_hash _name_or_path base_model dtype finetuning_task language languages license model_name name
        name_or_path task_name torch_dtype transformers_version
    """,
    "a runtime setting of `transformers`": """
        _attn_implementation _attn_implementation_autoset _output_attentions attn_implementation
        chunk_size_feed_forward gradient_checkpointing keys_to_ignore_at_inference output_attentions
        output_hidden_states output_past return_dict tf_legacy_loss torchscript use_bfloat16 use_cache use_return_dict
        xla_device
    """,
    "a default of `generate` in `transformers`; pretune has options for it": """
        assistant_confidence_threshold assistant_lookbehind bad_words_ids begin_suppress_tokens diversity_penalty
        do_sample early_stopping encoder_no_repeat_ngram_size encoder_repetition_penalty epsilon_cutoff eta_cutoff
        exponential_decay_length_penalty force_bos_token_to_be_generated forced_bos_token_id forced_eos_token_id
        length_penalty max_length max_new_tokens min_length no_repeat_ngram_size num_assistant_tokens
        num_assistant_tokens_schedule num_beam_groups num_beams num_return_sequences output_scores prefix
        remove_invalid_values renormalize_logits repetition_penalty return_dict_in_generate suppress_tokens
        target_lookbehind task_specific_params temperature top_k top_p typical_p
    """,
    "a token id or a setting of the tokenizer, which its files have too": """
        bos_token_id cls_token_id decoder_start_token_id do_lower_case eos_token_id eos_token_ids mask_token_id
        max_seq_length model_max_length pad_token_id padding sep_token_id tokenizer_class truncation unk_token_id
    """,
    "initialization, or dropout of heads: only for training, which has options for it": """
        classif_dropout classifier_dropout classifier_dropout_prob cls_dropout initializer_cutoff_factor
        initializer_factor initializer_range summary_first_dropout summary_last_dropout
    """,
    "an older name of the number of classes, which follows from id2label": "_num_labels",
    "a leftover of the published BERT code; nothing reads it": """
        directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type
    """,
    "describes how another library exported or trained the model": """
        onnx_export sentence_transformers transformers.js_config
    """,
}
IGNORED_KEYS: Mapping[str, str] = {key: reason for reason, keys in _REASONS.items() for key in keys.split()}

# Maps unsupported keys to what they mean and what to do. Empty values have no effect and are accepted.
UNSUPPORTED_KEYS: Mapping[str, str] = {
    "auto_map": "the model needs custom code; remove the key if its architecture is that of its family",
    "quantization_config": "the weights have a quantization that pretune does not support; save the model without quantization first",
    "adapters": "adapters are not supported; merge the adapters into the weights of the model first",
    "adapter_fusion_models": "adapters are not supported; merge the adapters into the weights of the model first",
    "pruned_heads": "attention heads pruned by `transformers` are not supported; choose another model",
    "cross_attention_hidden_size": "cross-attention to another network is not supported; choose another model",
    "tie_encoder_decoder": "layers shared between encoder and decoder are not supported; choose another model",
    "is_composition": "models composed of several networks are not supported; choose another model",
    "rope_scaling": "scaled rotary positions are not supported; choose another model",
    "per_layer_config": "layers with different configurations are not supported; choose another model",
}

# The supported values for encoders: `transformers` has one class for encoders and causal decoders.
ENCODER_VALUES: Mapping[str, Sequence[Any]] = {
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
}
ENCODER_DECODER_VALUES: Mapping[str, Sequence[Any]] = {**ENCODER_VALUES, "is_encoder_decoder": (True,)}
# The supported values for decoders without an encoder, whatever `is_decoder` says.
DECODER_VALUES: Mapping[str, Sequence[Any]] = {"add_cross_attention": (False,), "is_encoder_decoder": (False,)}


def summary_values(kind: str, activation: str, to_labels: bool) -> dict[str, Sequence[Any]]:
    """Return the supported values of the keys `summary_*` of config.json, which describe the head of a classifier.

    Each key has one supported value: `kind` is the pooling, `activation` follows the projection of the pooled vector,
    and `to_labels` says whether this projection has one output per label.
    """
    return {
        "summary_type": (kind,),
        "summary_use_proj": (True,),
        "summary_activation": (activation,),
        "summary_proj_to_labels": (to_labels,),
    }
