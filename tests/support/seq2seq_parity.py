"""Comparisons of encoder-decoders with `transformers`, on the same ragged sources and targets."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pretune.families import FAMILIES
from pretune.inference.predict import load_task_model
from pretune.models.loading import load_model
from pretune.models.model import Model, Network
from pretune.objectives import Mixture, Objective, parse_objective, single_objective
from pretune.packed import Batch
from tests.support.parity import Ragged, assert_same, close, compare_gradients

IDS = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}


@dataclass(frozen=True)
class VocabularyHeadOnly(Objective):
    """An objective with a vocabulary head and nothing else."""

    name: ClassVar[str] = "spans"

    def head(self, backbone: Any) -> nn.Module:
        return backbone.vocabulary_head()


def vocabulary_head_only() -> Mixture:
    """Return the mixture of that objective."""
    return single_objective(VocabularyHeadOnly())


def randomize(reference: Any, folder: Path) -> Any:
    """Set random parameters, norms and biases included, except frozen ones, and save the model."""
    torch.manual_seed(0)
    for parameter in reference.parameters():
        if parameter.requires_grad:
            nn.init.normal_(parameter, std=0.2)
    if hasattr(reference, "final_logits_bias"):
        nn.init.normal_(reference.final_logits_bias, std=0.2)
    reference.eval().save_pretrained(folder)
    return reference


@dataclass
class Pair:
    """Sources and targets of different lengths, packed and padded; some targets are longer than their sources."""

    source: Ragged
    target: Ragged

    @classmethod
    def make(cls, vocabulary: int) -> Pair:
        source = Ragged.make(vocabulary, (7, 12, 1, 5))
        return cls(source, Ragged.make(vocabulary, (3, 6, 9, 1), seed=1))

    @property
    def inputs(self) -> dict[str, Any]:
        return {
            "input_ids": self.source.input_ids,
            "attention_mask": self.source.attention_mask,
            "decoder_input_ids": self.target.input_ids,
            "decoder_attention_mask": self.target.attention_mask,
        }


def logits(model: Model, pair: Pair) -> Tensor:
    """Return the logits of pretune for the targets, without padding."""
    states = model.backbone(pair.source.packed, pair.target.packed).last
    return model.root.heads["spans"](states, model.backbone.embed.tokens)


def assert_parity(reference: Any, folder: Path) -> Model:
    """Assert that hidden states of both stacks, logits, loss and gradients match."""
    model = load_model(folder, vocabulary_head_only())
    model.root.eval()
    vocabulary = model.backbone.embed.vocabulary
    pair = Pair.make(vocabulary)
    theirs = reference(**pair.inputs, output_hidden_states=True)
    stacks = [
        (model.backbone.encoder(pair.source.packed, keep="all"), theirs.encoder_hidden_states, pair.source),
        (
            model.backbone(pair.source.packed, pair.target.packed, keep="all"),
            theirs.decoder_hidden_states,
            pair.target,
        ),
    ]
    for states, expected, side in stacks:
        assert len(states.layers) == len(expected)
        for layer, wanted_layer in zip(states.layers, expected, strict=True):  # the last is after the final norm
            close(layer, side.flat(wanted_layer))
    ours = logits(model, pair)
    close(ours, pair.target.flat(theirs.logits))

    wanted, labels = pair.target.targets(vocabulary)
    expected_loss = reference(**pair.inputs, labels=labels).loss
    loss = F.cross_entropy(ours, wanted)
    close(loss, expected_loss)

    expected_loss.backward()
    loss.backward()
    compare_gradients(model, reference)
    return model


def assert_round_trip(reference: Any, folder: Path, out: Path, reference_class: Any) -> None:
    """Assert that an export loads in `transformers` with the same logits, and that a second export is identical."""
    load_model(folder, vocabulary_head_only()).save(out / "a")
    load_model(out / "a", vocabulary_head_only()).save(out / "b")
    for name in ("model.safetensors", "config.json"):
        assert (out / "a" / name).read_bytes() == (out / "b" / name).read_bytes()
    again, report = reference_class.from_pretrained(out / "a", output_loading_info=True)
    assert type(again) is type(reference)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    pair = Pair.make(reference.config.vocab_size)
    close(again.eval()(**pair.inputs).logits, reference(**pair.inputs).logits, 1e-6)


def assert_classifier(family: str, config: dict[str, Any], out: Path) -> None:
    """Assert that a classifier round-trips with the same logits. The decoder reads the same text as the encoder."""
    from transformers import AutoModelForSequenceClassification

    labels = ["bad", "good", "so so"]
    objective = parse_objective("classify", labels=tuple(labels), pooling=FAMILIES[family].poolings[""])
    made = FAMILIES[family]
    model = Model(
        made, made.read_config(config), Network(made.build(made.read_config(config))), None, "classify", labels
    )
    model.add_heads(objective.objectives)
    model.root.eval()
    model.save(out)
    reference, report = AutoModelForSequenceClassification.from_pretrained(out, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    source = Ragged.make(config["vocab_size"])
    lengths = source.attention_mask.sum(1)
    source.input_ids[torch.arange(4), lengths - 1] = reference.config.eos_token_id
    ids = source.flat(source.input_ids)
    target = ids.roll(1)
    target[source.packed.offsets[:-1].long()] = config["decoder_start_token_id"]
    batch = Batch((replace(source.packed, ids=ids), replace(source.packed, ids=target)))
    ours = objective.objectives[0].outputs(model.root.heads["classify"], model.backbone, batch)  # type: ignore[attr-defined]
    theirs = reference.eval()(input_ids=source.input_ids, attention_mask=source.attention_mask).logits
    close(ours, theirs)
    reference.save_pretrained(out / "back")
    back = load_task_model(out / "back")[0]
    assert back.root.heads["classify"].pooling == "last"
    assert_same(model.root, back.root)
