"""Change the keys of config.json one by one: each has the same effect as in `transformers`, or is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from pretune import PretuneError
from pretune.families import FAMILIES
from tests.support.parity import close
from tests.support.transformers_cases import Case

# Keys that `transformers` reads if a file has them, but does not list in its configurations, and older keys.
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
# Other values of keys for which the type does not suggest any.
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
    "local_num_chunks_before": [2, 0],  # there are three chunks
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


def default_config(name: str) -> dict[str, Any]:
    """Return the config keys of a family in `transformers` with their defaults."""
    from transformers import AutoConfig

    return AutoConfig.for_model(name).to_dict()  # type: ignore[no-any-return]


def other_values(key: str, value: Any) -> list[Any]:
    """Return plausible other values of a key."""
    if key in VALUES:
        return [other for other in VALUES[key] if other != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, 2 * value, value + 4, max(value // 2, 1)]
    if isinstance(value, float):
        return [2 * value + 0.1, value / 2]
    return ["another"] if isinstance(value, str) else [3, 0.3, True] if value is None else []


def key_changes(case: Case) -> Iterator[tuple[str, list[Any]]]:
    """Yield the keys of a family, each with values to try."""
    known = default_config(case.family) | case.tiny
    for key, value in known.items():
        if key not in ("model_type", "transformers_version", "architectures", "_name_or_path", "dtype", "return_dict"):
            yield key, other_values(key, value)
    for key, values in UNLISTED.items():
        if key not in known:
            yield key, values


def outcome_of_change(case: Case, key: str, values: list[Any], folder: Path) -> str:
    """Return the outcome of changing a key: "same" logits as in `transformers`, "refused" by name, or "nothing" that it accepts."""
    outcome = "nothing"
    for value in values:
        place = Path(mkdtemp(dir=folder))  # a name that does not contain the key
        try:
            reference = case.reference(place, {key: value})
            expected = case.theirs(reference)
        except Exception:  # any: the value does not fit the other keys
            continue
        try:
            ours = case.ours(place, reference.config)
        except PretuneError as refusal:
            if key not in str(refusal) and repr(value) not in str(refusal):
                raise AssertionError(f"{key}={value!r} is refused without its name") from refusal
            outcome = "refused" if outcome == "nothing" else outcome
            continue
        difference = (ours - expected).abs().max().item() if ours.shape == expected.shape else float("inf")
        assert difference < 1e-4, f"{key}={value!r}"
        outcome = "same"
    return outcome


def check_config_keys(case: Case, folder: Path) -> None:
    """Change each key of a class in turn, and assert that none is ignored."""
    family = FAMILIES[case.family]
    reference = case.reference(folder / "as it is", {})
    close(case.ours(folder / "as it is", reference.config), case.theirs(reference))
    outcomes = {key: outcome_of_change(case, key, values, folder) for key, values in key_changes(case)}
    refused = {key for key, outcome in outcomes.items() if outcome == "refused"}
    # Keys that the family restricts or does not know; untied encoder-decoders have separate embeddings.
    untied = {"tie_word_embeddings"} if case.seq2seq else set()
    assert refused <= {*family.supported, *family.unknown_keys(dict.fromkeys(outcomes, "")), *untied}
    taken = {key for key, outcome in outcomes.items() if outcome == "same"}
    assert len(taken) >= 0.5 * len(outcomes)
