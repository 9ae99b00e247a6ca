"""Reformer against `transformers`.

`transformers` gets the sequences one by one, since padding changes its chunks, and computes in fp64: in fp32, the output of a token
that attends only to itself is off by some tenths of a percent. Its version 5.22 does not add the bias of the output head, as version 4
did; here the bias is added.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pretune import PretuneError
from pretune.families import FAMILIES
from pretune.inference.generation.causal_generation import DecodingSession
from pretune.inference.generation.decoding_loops import GenerationConfig, beam_search_texts, generate_texts
from pretune.models.adapt_vocabulary import extend_positions, replace_vocabulary
from pretune.models.create_model import make_model
from pretune.models.loading import load_model
from pretune.models.model import Model, Network
from pretune.nn.attention.patterns import causal
from pretune.objectives import parse_objective
from pretune.packed import Capacity, Packed, pack, pack_lists
from tests.support.parity import assert_same, close, compare_gradients, save_reference

SEED, WIDTH = 3, 32
SMALL: dict[str, Any] = {
    "vocab_size": 60, "hidden_size": WIDTH, "num_attention_heads": 2, "attention_head_size": 12, "feed_forward_size": 40,
    "attn_layers": ["local", "lsh", "local", "lsh"], "local_attn_chunk_length": 4, "lsh_attn_chunk_length": 8,
    "num_buckets": [4, 2], "num_hashes": 3, "hash_seed": SEED, "axial_pos_shape": [4, 12],
    "axial_pos_embds_dim": [12, 20], "max_position_embeddings": 48, "is_decoder": True, "hidden_dropout_prob": 0.0,
}  # fmt: skip
QUIET = {"local_attention_probs_dropout_prob": 0.0, "lsh_attention_probs_dropout_prob": 0.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "both": {},
    "one round": {"num_hashes": 1, "num_buckets": 4},
    "lsh alone": {"attn_layers": ["lsh", "lsh"], "hidden_act": "gelu"},
    "local alone": {"attn_layers": ["local", "local"], "layer_norm_eps": 1e-3},
    "chunks of one size": {"local_attn_chunk_length": 8, "num_buckets": 6},
    "more chunks before": {"local_num_chunks_before": 2, "lsh_num_chunks_before": 2},
    "learned positions": {"axial_pos_embds": False},
}
LENGTHS = (29, 1, 8, 48, 9, 3, 16)
TRAINED = (24, 3, 16, 8)  # in training, `transformers` takes multiples of the chunk length, or less than one chunk


class TheirRotations(nn.Module):
    """Return the random rotations of `transformers`, in the precision in which it samples them."""

    def forward(self, shape: tuple[int, ...], depth: int, device: torch.device) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            return torch.randn(shape, dtype=torch.float64).float()


def make_pair(folder: Path, **changes: Any) -> tuple[Any, Model]:
    """Return a model of `transformers` in fp64, and the same model in pretune with its parameters and rotations."""
    from transformers import ReformerConfig, ReformerModelWithLMHead

    reference = save_reference(ReformerModelWithLMHead, ReformerConfig(**SMALL | QUIET | changes), folder)
    reference.lm_head.decoder.bias = reference.lm_head.bias
    model = load_model(folder, parse_objective("lm"))
    for layer in model.backbone.layers:
        layer.attention.part.rotations = TheirRotations()
    return reference.double(), model


def texts(lengths: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    rng = np.random.default_rng(seed)
    return [torch.from_numpy(rng.integers(5, 60, length)) for length in lengths]


def packed_of(parts: list[Tensor], **options: Any) -> Packed:
    return pack(torch.cat(parts).numpy(), np.array([len(part) for part in parts]), pattern=causal, **options)


def inputs(part: Tensor) -> dict[str, Tensor]:
    return {"input_ids": part[None], "attention_mask": torch.ones(1, len(part), dtype=torch.long)}


@pytest.mark.parametrize("variant", VARIANTS)
def test_hidden_states_logits_and_loss_match_transformers(variant: str, tmp_path: Path) -> None:
    reference, model = make_pair(tmp_path, **VARIANTS[variant])
    parts = texts(LENGTHS)
    packed = packed_of(parts)
    model.root.eval()
    with torch.no_grad():
        ours = model.backbone(packed, keep="all")
        logits = model.root.heads["lm"](ours.last, model.backbone.embed.tokens)
        for part, start in zip(parts, packed.offsets.tolist(), strict=False):
            theirs = reference(**inputs(part), labels=part[None], output_hidden_states=True)
            mine = slice(start, start + len(part))
            # `transformers` returns the second of the two streams; pretune returns both after the last layer, normalized.
            assert len(ours.layers) == len(theirs.hidden_states)
            for layer, expected in zip(ours.layers[:-1], theirs.hidden_states, strict=False):
                close(layer[mine, WIDTH:], expected[0, : len(part)].float())
            close(ours.last[mine], reference.reformer(**inputs(part)).last_hidden_state[0].float())
            close(logits[mine], theirs.logits[0].float())
            if len(part) > 1:
                close(F.cross_entropy(logits[mine][:-1], part[1:]), theirs.loss.float())


@pytest.mark.parametrize(
    ("changes", "lengths"),
    [
        ({"axial_pos_embds": False}, TRAINED),
        ({"axial_pos_embds": False, "num_hashes": 1, "num_buckets": 4}, TRAINED),
        ({}, (48, 48)),
    ],
)
def test_gradients_match_transformers(changes: dict[str, Any], lengths: tuple[int, ...], tmp_path: Path) -> None:
    reference, model = make_pair(tmp_path, **changes)
    parts = texts(lengths)
    packed = packed_of(parts)
    total = sum(length - 1 for length in lengths)
    reference.train()
    for part in parts:
        loss = reference(**inputs(part), labels=part[None]).loss
        (loss * (len(part) - 1) / total).backward()
    logits = model.root.heads["lm"](model.backbone(packed).last, model.backbone.embed.tokens)
    last = torch.zeros(len(packed), dtype=torch.bool)
    last[packed.offsets[1:].long() - 1] = True
    at = (~last).nonzero().flatten()
    F.cross_entropy(logits[at], packed.ids[at + 1]).backward()
    compare_gradients(model, reference.float())


def test_packed_sequences_match_single_ones_and_padding_is_ignored() -> None:
    model = make()
    parts = texts(LENGTHS)
    with torch.no_grad():
        together = model.backbone(packed_of(parts), keep="all").layers
        alone = [model.backbone(packed_of([part]), keep="all").layers for part in parts]
        filled = packed_of(parts, capacity=Capacity(150, 12, 48), filler=7)
        more = model.backbone(filled, keep="all").layers
    for number, layer in enumerate(together):
        close(layer, torch.cat([layers[number] for layers in alone]))
        close(layer, more[number][: len(layer)])


def make(**changes: Any) -> Model:
    family = FAMILIES["reformer"]
    config = family.read_config(SMALL | {"hash_seed": None, "initializer_range": 0.2} | changes)
    torch.manual_seed(0)
    model = Model(family, config, Network(family.build(config)), objective="lm")
    model.add_heads(parse_objective("lm").objectives)
    model.root.eval()
    return model


@pytest.mark.parametrize("variant", ["one round", "learned positions"])
def test_export_loads_in_transformers_and_a_second_export_is_identical(variant: str, tmp_path: Path) -> None:
    from transformers import AutoModel, AutoModelForCausalLM, ReformerConfig, ReformerModelWithLMHead

    changes = VARIANTS["one round"] | VARIANTS[variant]
    reference = save_reference(
        ReformerModelWithLMHead, ReformerConfig(**SMALL | QUIET | changes), tmp_path / "reference"
    )
    load_model(tmp_path / "reference", parse_objective("lm")).save(tmp_path / "a")
    load_model(tmp_path / "a", parse_objective("lm")).save(tmp_path / "b")
    for file in ("model.safetensors", "config.json"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    again, report = AutoModelForCausalLM.from_pretrained(tmp_path / "a", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert type(again) is type(reference)
    (part,) = texts((29,))
    with torch.no_grad():
        theirs = reference(**inputs(part)).logits
        close(again.eval()(**inputs(part)).logits, theirs, 1e-6)
        # With `hash_seed` both compute the same hashes, and a single round of hashing is accurate in fp32.
        ours = load_model(tmp_path / "a", parse_objective("lm"))
        states = ours.root.eval().backbone(packed_of([part])).last
        close(ours.root.heads["lm"](states, ours.backbone.embed.tokens) - reference.lm_head.bias, theirs[0])
    _, report = AutoModel.from_pretrained(tmp_path / "a", output_loading_info=True)
    assert not report["missing_keys"]


def test_a_custom_model_has_no_special_ids_of_the_published_vocabulary(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    make().save(tmp_path)
    reference, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert (
        reference.config.eos_token_id is None and reference.config.bos_token_id is None and reference.config.is_decoder
    )


def test_models_without_heads_with_old_buffers_and_with_tied_biases_load(tmp_path: Path) -> None:
    make_pair(tmp_path / "whole")[0].float().reformer.save_pretrained(tmp_path / "bare")
    whole, bare = load_model(tmp_path / "whole"), load_model(tmp_path / "bare")
    assert_same(whole.root, bare.root)
    tensors = load_file(tmp_path / "whole" / "model.safetensors")
    for name in ("mask_value_float16", "mask_value_float32", "self_mask_value_float32"):
        tensors[f"reformer.encoder.layers.1.attention.self_attention.{name}"] = torch.tensor(-1e4)
    tensors["lm_head.decoder.bias"] = tensors.pop("lm_head.bias")
    tensors["classifier.out_proj.weight"] = torch.zeros(2, 32)
    before = load_model(tmp_path / "whole", parse_objective("lm"))
    save_file(tensors, tmp_path / "whole" / "model.safetensors")
    assert_same(before.root, load_model(tmp_path / "whole", parse_objective("lm")).root)


def test_a_classifier_pools_the_last_token_and_is_not_exported(tmp_path: Path) -> None:
    """`transformers` pools the first token, which a causal model lets see nothing."""
    family, labels = FAMILIES["reformer"], ("bad", "good")
    model = make()
    objective = parse_objective("classify+0.5*lm", labels=labels, pooling=family.poolings[""])
    model.add_heads(objective.objectives)
    model.objective, model.labels = "classify+0.5*lm", list(labels)
    model.save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["ReformerModelWithLMHead"]
    again = load_model(tmp_path, objective)
    assert_same(model.root, again.root)
    assert again.root.heads["classify"].pooling == "last"


# preset → parameters of the released checkpoint (`ReformerModelWithLMHead`)
RELEASED = {"reformer-crime-and-punishment": 2_748_224, "reformer-enwik8": 149_182_722}


@pytest.mark.parametrize("name", RELEASED)
def test_parameter_counts_of_presets_match_the_releases(name: str) -> None:
    from dataclasses import asdict

    from transformers import ReformerConfig, ReformerModelWithLMHead

    with torch.device("meta"):
        model = make_model(name)
        modules = [model.backbone, model.backbone.vocabulary_head()]
        theirs = ReformerModelWithLMHead(ReformerConfig(**asdict(model.config)))
    ours = sum(p.numel() for module in modules for p in module.parameters())
    assert ours == sum(p.numel() for p in theirs.parameters()) == RELEASED[name]


def test_number_of_buckets_for_the_longest_sequences_matches_transformers() -> None:
    from transformers import ReformerConfig
    from transformers.models.reformer.modeling_reformer import LSHSelfAttention

    for longest, size in ((48, 8), (4096, 64), (65536, 64), (524288, 64), (2048, 256)):
        changes = {"num_buckets": None, "max_position_embeddings": longest, "lsh_attn_chunk_length": size}
        attention = LSHSelfAttention(ReformerConfig(**SMALL | changes))
        attention._set_num_buckets(longest)
        theirs = [attention.num_buckets] if isinstance(attention.num_buckets, int) else attention.num_buckets
        assert FAMILIES["reformer"].read_config(SMALL | changes).buckets() == theirs


def test_hashes_are_random_in_training_only() -> None:
    from pretune.nn.dropout import share_dropout_seed

    model, packed = make(), packed_of(texts((48,)))
    seed = share_dropout_seed(model.root, torch.device("cpu"))
    with torch.no_grad():
        seed.fill_(1)
        evaluated, trained = model.backbone(packed).last, model.root.train().backbone(packed).last
        seed.fill_(2)
        assert not torch.equal(trained, model.backbone(packed).last)
        assert torch.equal(evaluated, model.root.eval().backbone(packed).last)


@torch.inference_mode()
def test_generation_matches_reading_the_whole_text_at_each_step() -> None:
    from tests.support import tiny_training_cases

    model = make(vocab_size=tiny_training_cases.VOCABULARY)
    model.tokenizer = tiny_training_cases.store().tokenizer
    prompts = [[5, 9, 200], [17, 30] * 6, [8]]
    reader = DecodingSession(model, len(prompts), 30)
    whole = [list(prompt) for prompt in prompts]
    bits = whole
    for step in range(4):
        logits = reader.read(bits)
        packed = pack_lists(whole, pattern=causal)
        last = model.backbone(packed).last[packed.offsets[1:].long() - 1]
        close(logits, model.root.heads["lm"](last, model.backbone.embed.tokens))
        bits = [[40 + step + row] * (1 + row) for row in range(3)]
        whole = [text + bit for text, bit in zip(whole, bits, strict=True)]
    limits = [5] * 3
    greedy = generate_texts(
        DecodingSession(model, 3, 30), prompts, range(3), limits, GenerationConfig(max_new_tokens=5), set()
    )
    beams = beam_search_texts(
        DecodingSession(model, 3, 30), prompts, limits, GenerationConfig(max_new_tokens=5, num_beams=3), set()
    )
    assert [len(text.ids) for text in (*greedy, *beams)] == [5] * 6


def test_documents_of_a_stateful_batch_do_not_attend_to_each_other() -> None:
    model, (first, second) = make(), texts((13, 20))
    fresh = np.zeros(33, dtype=bool)
    fresh[[0, 13]] = True
    packed = pack(torch.cat([first, second]).numpy(), np.array([33]), columns={"document_start": fresh}, pattern=causal)
    x = model.backbone.embed.tokens
    model.backbone(packed).last[13:].sum().backward()
    seen = x.grad.abs().sum(1).nonzero().flatten().tolist()  # type: ignore[union-attr]
    assert set(seen) <= set(second.tolist())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"is_decoder": False}, "is_decoder false is not supported for reformer; use a model with is_decoder true"),
        ({"lsh_num_chunks_after": 1}, "lsh_num_chunks_after 1 is not supported"),
        ({"attn_layers": ["local", "full"]}, "attn_layers must list local and lsh layers, but contains full"),
        ({"attn_layers": []}, "attn_layers must list local and lsh layers, but contains no layer"),
        ({"lsh_attn_chunk_length": 6}, "lsh_attn_chunk_length 6 must be a multiple of local_attn_chunk_length, 4"),
        ({"num_buckets": [4, 3]}, "num_buckets 3 is odd"),
        ({"axial_pos_embds_dim": [12, 12]}, r"axial_pos_embds_dim \[12, 12\] must sum to hidden_size, 32"),
    ],
)
def test_unsupported_configurations_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PretuneError, match=message):
        make(**changes)


def test_the_vocabulary_can_be_replaced_but_positions_not_extended(tmp_path: Path) -> None:
    from tests.support.tiny_models import small_tokenizer

    old, new = small_tokenizer("byte-level-bpe"), small_tokenizer("wordpiece")
    model = make(vocab_size=old.size)
    model.tokenizer = old
    nn.init.normal_(model.root.heads["lm"].output.bias)
    made, report = replace_vocabulary(model, new)
    assert report["matched"] > 20
    here, there = new.role("mask"), old.role("mask")
    for name in ("weight", "bias"):
        before, after = (getattr(root.heads["lm"].output, name) for root in (model.root, made.root))
        assert len(after) == new.size and torch.equal(after[here], before[there])
    made.save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["vocab_size"] == new.size
    with pytest.raises(PretuneError, match="its 48 positions are axial, which cannot be extended"):
        extend_positions(model, 96)
