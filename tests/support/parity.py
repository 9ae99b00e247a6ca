"""Comparisons with `transformers`: the same ragged batch padded for it and packed for pretune."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pretune.families.family import Family
from pretune.models.length_bucketing import text_batches
from pretune.models.loading import load_model
from pretune.models.model import Model, Network
from pretune.objectives import Mixture, parse_objective
from pretune.packed import Packed, pack


@dataclass
class Ragged:
    """Random sequences of different lengths, packed and padded."""

    packed: Packed
    input_ids: Tensor  # (b, L)
    attention_mask: Tensor
    columns: dict[str, Tensor]  # (b, L) each, under their names in `transformers`

    @classmethod
    def make(
        cls,
        vocabulary: int,
        lengths: tuple[int, ...] = (7, 12, 1, 5),
        seed: int = 0,
        lowest: int = 5,
        padding: int = 0,
        columns: dict[str, tuple[str, int]] | None = None,
        left: bool = False,
    ) -> Ragged:
        """Return random sequences.

        `columns` maps names of columns to those of `transformers` and their number of values; segments by default. `left` pads on the
        left.
        """
        rng = np.random.default_rng(seed)
        columns = {"segment": ("token_type_ids", 2)} if columns is None else columns
        ids = rng.integers(lowest, vocabulary, sum(lengths))
        ours = {name: rng.integers(0, values, sum(lengths)) for name, (_, values) in columns.items()}
        mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        mask = mask.flip(1) if left else mask
        padded = torch.full(mask.shape, padding)
        padded[mask] = torch.from_numpy(ids)
        theirs = {}
        for name, (theirs_name, _) in columns.items():
            theirs[theirs_name] = torch.zeros(mask.shape, dtype=torch.long)
            theirs[theirs_name][mask] = torch.from_numpy(ours[name])
        return cls(pack(ids, np.array(lengths), columns=ours), padded, mask.long(), theirs)

    @property
    def inputs(self) -> dict[str, Any]:
        return {"input_ids": self.input_ids, "attention_mask": self.attention_mask, **self.columns}

    @property
    def starts(self) -> Tensor:
        """The index of the first token of each sequence, (b,)."""
        return self.packed.offsets[:-1].long()

    def flat(self, padded: Tensor) -> Tensor:
        """Return a padded output, (b, L, …), without padding, (n, …)."""
        return padded[self.attention_mask.bool()]

    def targets(self, values: int) -> tuple[Tensor, Tensor]:
        """Return a target for each token, (n,), and the same as padded labels for `transformers`, (b, L)."""
        target = torch.arange(len(self.packed)) % values
        labels = torch.full_like(self.input_ids, -100)
        labels[self.attention_mask.bool()] = target
        return target, labels


def close(ours: Tensor, theirs: Tensor, tolerance: float = 1e-5) -> None:
    """Assert that two tensors are equal within a tolerance."""
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)


def save_reference(kind: Any, config: Any, folder: Path) -> Any:
    """Save a `transformers` model with random parameters, norms and biases included, so that no agreement is accidental."""
    torch.manual_seed(0)
    reference = kind(config)
    for parameter in reference.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    reference.eval().save_pretrained(folder)
    return reference


def compare_states(model: Model, hidden_states: Any, batch: Ragged) -> Tensor:
    """Assert that the states of every layer match, and return the last."""
    ours = model.backbone(batch.packed, keep="all")
    assert len(ours.layers) == len(hidden_states)
    for layer, expected in zip(ours.layers, hidden_states, strict=True):
        close(layer, batch.flat(expected))
    return ours.last


def compare_gradients(model: Model, reference: Any) -> None:
    """Assert that gradients match by published name, and that `transformers` has no others; tied parameters have several names."""
    theirs = {name: p for name, p in reference.named_parameters(remove_duplicate=False) if p.grad is not None}
    ours, rest = model.family.table.write({n: p.grad for n, p in model.root.named_parameters() if p.grad is not None})
    assert not rest
    assert {id(theirs[name]) for name in ours} == {id(p) for p in theirs.values()}
    for name, gradient in ours.items():
        close(gradient, theirs[name].grad, 1e-4)


def compare_mlm(reference: Any, folder: Path, batch: Ragged, every: int = 1, objective: str = "mlm") -> Model:
    """Assert that hidden states, logits, loss and gradients match; of the states of `transformers`, only every `every`-th is used."""
    model = load_model(folder, parse_objective(objective))
    theirs = reference(**batch.inputs, output_hidden_states=True)
    states = compare_states(model, theirs.hidden_states[::every], batch)
    logits = model.root.heads[objective](states, model.backbone.embed.tokens)
    close(logits, batch.flat(theirs.logits))
    target, labels = batch.targets(model.config.vocab_size)
    expected = reference(**batch.inputs, labels=labels).loss
    loss = F.cross_entropy(logits, target)
    close(loss, expected)
    expected.backward()
    loss.backward()
    compare_gradients(model, reference)
    return model


def compare_export(reference: Any, folder: Path, out: Path, batch: Ragged, auto: Any, objective: str = "mlm") -> None:
    """Assert that an export loads in pretune and `transformers`, and that a second export is identical byte for byte."""
    from transformers import AutoModel

    load_model(folder, parse_objective(objective)).save(out / "a")
    load_model(out / "a", parse_objective(objective)).save(out / "b")
    for name in ("model.safetensors", "config.json"):
        assert (out / "a" / name).read_bytes() == (out / "b" / name).read_bytes()
    again, report = auto.from_pretrained(out / "a", output_loading_info=True)
    assert type(again) is type(reference)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    with torch.no_grad():
        close(again.eval()(**batch.inputs).logits, reference(**batch.inputs).logits, 1e-6)
    _, report = AutoModel.from_pretrained(out / "a", output_loading_info=True)
    assert not [name for name in report["missing_keys"] if "pooler" not in name]


def compare_classifier(
    family: Family, small: dict[str, Any], out: Path, batch: Ragged, unused: tuple[str, ...] = ()
) -> None:
    """Assert that `transformers` loads an exported classifier with the same logits, and that its own export loads again.

    `unused` are parts that `transformers` has but does not use.
    """
    from transformers import AutoModelForSequenceClassification

    labels = ["bad", "good", "so so"]
    objective = parse_objective("classify", labels=tuple(labels), pooling=family.poolings.get("", "cls"))
    config = family.read_config(small)
    model = Model(family, config, Network(family.build(config)), objective="classify", labels=labels)
    model.add_heads(objective.objectives)
    model.root.eval().requires_grad_(False)
    model.save(out / "ours")
    reference, report = AutoModelForSequenceClassification.from_pretrained(out / "ours", output_loading_info=True)
    assert not [name for name in report["missing_keys"] if not any(part in name for part in unused)]
    assert not report["unexpected_keys"]
    ours = model.root.heads["classify"](model.backbone(batch.packed).last, batch.packed)
    with torch.no_grad():
        close(ours, reference.eval()(**batch.inputs).logits)
    assert reference.config.id2label == dict(enumerate(labels))
    reference.save_pretrained(out / "theirs")
    back = load_model(out / "theirs", objective)
    assert back.labels == labels
    assert_same(model.root, back.root)


def compare_texts(
    reference: Any, hf_tokenizer: Any, folder: Path, texts: list[str], pairs: list[str] | None = None
) -> Model:
    """Assert that texts and pairs have the same ids and hidden states in `transformers` and in pretune.

    `reference` is a model without heads in the folder, `hf_tokenizer` the tokenizer of `transformers` there.
    """
    model = load_model(folder)
    for second in (None,) if pairs is None else (None, pairs):
        given = hf_tokenizer(texts, second, padding=True, return_tensors="pt")
        with torch.no_grad():
            theirs = reference(**given).last_hidden_state
            (batch,) = text_batches(model, texts, second)
            (packed,) = batch.packed
            ours = model.root.eval().backbone(packed).last
        for place, row in enumerate(batch.rows.tolist()):
            start, end = packed.offsets[place : place + 2].tolist()
            real = given["attention_mask"][row].bool()
            assert packed.ids[start:end].tolist() == given["input_ids"][row][real].tolist()
            close(ours[start:end], theirs[row][real])
    return model


def assert_same(first: Network, second: Network) -> None:
    """Assert that two models have tensors of the same names and values."""
    ours, theirs = first.tensors(), second.tensors()
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def check_folder_and_back(model: Model, mixture: Mixture, folder: Path) -> None:
    """Assert that a model with random parameters is saved, loaded and saved again without any change."""
    model.add_heads(mixture.objectives)
    for parameter in model.root.parameters():
        torch.nn.init.normal_(parameter)
    model.save(folder / "a")
    assert not (folder / "a" / "head.safetensors").exists()  # the published layout has a name for every tensor
    again = load_model(folder / "a", mixture)
    again.save(folder / "b")
    for name in ("model.safetensors", "config.json"):
        assert (folder / "a" / name).read_bytes() == (folder / "b" / name).read_bytes()
    for name, tensor in model.root.tensors().items():
        assert torch.equal(tensor, again.root.tensors()[name])
