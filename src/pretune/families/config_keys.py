"""Keys of config.json that mean the same in every family: those that change no output, and those that are refused.

A family accounts for each key of its config.json: a field of its configuration, a value that must be this one (`only`), or a key
that changes nothing (`harmless`). What no list has is refused, since it may change the output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

# Read by `pretune.models.model`: which family and heads a folder holds, and the names of its classes.
DESCRIPTION = frozenset(
    {
        "architectures",
        "model_type",
        "id2label",
        "label2id",
        "num_labels",
        "problem_type",
        "pretune",
    }
)

# Why they change no output → the keys.
_REASONS: Mapping[str, tuple[str, ...]] = {
    "says where the file comes from": (
        "_commit_hash",
        "_name_or_path",
        "base_model",
        "dtype",
        "finetuning_task",
        "language",
        "languages",
        "license",
        "model_name",
        "name",
        "name_or_path",
        "task_name",
        "torch_dtype",
        "transformers_version",
    ),
    "says how `transformers` runs a model": (
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_output_attentions",
        "attn_implementation",
        "chunk_size_feed_forward",
        "gradient_checkpointing",
        "keys_to_ignore_at_inference",
        "output_attentions",
        "output_hidden_states",
        "output_past",
        "return_dict",
        "tf_legacy_loss",
        "torchscript",
        "use_bfloat16",
        "use_cache",
        "use_return_dict",
        "xla_device",
    ),
    "a default of `generate` in `transformers`; pretune has options for it": (
        "assistant_confidence_threshold",
        "assistant_lookbehind",
        "bad_words_ids",
        "begin_suppress_tokens",
        "diversity_penalty",
        "do_sample",
        "early_stopping",
        "encoder_no_repeat_ngram_size",
        "encoder_repetition_penalty",
        "epsilon_cutoff",
        "eta_cutoff",
        "exponential_decay_length_penalty",
        "force_bos_token_to_be_generated",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "length_penalty",
        "max_length",
        "max_new_tokens",
        "min_length",
        "no_repeat_ngram_size",
        "num_assistant_tokens",
        "num_assistant_tokens_schedule",
        "num_beam_groups",
        "num_beams",
        "num_return_sequences",
        "output_scores",
        "prefix",
        "remove_invalid_values",
        "renormalize_logits",
        "repetition_penalty",
        "return_dict_in_generate",
        "suppress_tokens",
        "target_lookbehind",
        "task_specific_params",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
    ),
    "an id or a setting of the tokenizer, whose files say it too": (
        "bos_token_id",
        "cls_token_id",
        "decoder_start_token_id",
        "do_lower_case",
        "eos_token_id",
        "eos_token_ids",
        "mask_token_id",
        "max_seq_length",
        "model_max_length",
        "pad_token_id",
        "padding",
        "sep_token_id",
        "tokenizer_class",
        "truncation",
        "unk_token_id",
    ),
    "how parameters start, or dropout of heads: matters to training alone, which has options for it": (
        "classif_dropout",
        "classifier_dropout",
        "classifier_dropout_prob",
        "cls_dropout",
        "initializer_cutoff_factor",
        "initializer_factor",
        "initializer_range",
        "summary_first_dropout",
        "summary_last_dropout",
    ),
    "an older name of the number of classes, which id2label says": ("_num_labels",),
    "of the published BERT code; nothing reads it": (
        "directionality",
        "pooler_fc_size",
        "pooler_num_attention_heads",
        "pooler_num_fc_layers",
        "pooler_size_per_head",
        "pooler_type",
    ),
    "says how a folder was exported or trained elsewhere": (
        "onnx_export",
        "sentence_transformers",
        "transformers.js_config",
    ),
}
HARMLESS: Mapping[str, str] = {key: reason for reason, keys in _REASONS.items() for key in keys}

# What they mean, and what to do. An empty value means nothing.
REFUSED: Mapping[str, str] = {
    "auto_map": "the model needs custom code; remove the key if it is a plain model of its family all the same",
    "quantization_config": "its weights are quantized in a way that pretune does not read; save them unquantized first",
    "adapters": "it has adapters, which pretune does not read; merge them into the model first",
    "adapter_fusion_models": "it has adapters, which pretune does not read; merge them into the model first",
    "pruned_heads": "it has pruned attention heads, whose layout pretune does not read",
    "cross_attention_hidden_size": "it attends to another network, which the folder does not have",
    "tie_encoder_decoder": "it shares its encoder's layers with its decoder, which is not supported",
    "is_composition": "it is made of several networks, which is not supported",
    "rope_scaling": "it stretches its rotary positions, which is not supported",
    "per_layer_config": "its layers differ from one another, which is not supported",
}

# What an encoder must be: `transformers` has one class for it and for a decoder that reads left to right.
ENCODER: Mapping[str, Sequence[Any]] = {
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
}
# The same of a decoder without an encoder, whatever it says of itself.
DECODER: Mapping[str, Sequence[Any]] = {"add_cross_attention": (False,), "is_encoder_decoder": (False,)}
