"""What every family's parity test needs: the same ragged batch for the peer, padded, and for us, packed; and comparisons."""

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
    """Random sequences of different lengths, both ways."""

    packed: Packed
    input_ids: Tensor  # (b, L)
    attention_mask: Tensor
    columns: dict[str, Tensor]  # (b, L) each, under the names that the peer has for them

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
        """`columns`: our name of a column → the peer's, and how many values it has; segments by default.

        `left`: the peer's padding is on the left.
        """
        chance = np.random.default_rng(seed)
        columns = {"segment": ("token_type_ids", 2)} if columns is None else columns
        ids = chance.integers(lowest, vocabulary, sum(lengths))
        ours = {name: chance.integers(0, values, sum(lengths)) for name, (_, values) in columns.items()}
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
        """(b,) the first token of each sequence."""
        return self.packed.offsets[:-1].long()

    def flat(self, padded: Tensor) -> Tensor:
        """(b, L, …) → (n, …): the peer's output at the real tokens."""
        return padded[self.attention_mask.bool()]

    def targets(self, values: int) -> tuple[Tensor, Tensor]:
        """A target for each token, (n,), and the same as the peer wants it, (b, L)."""
        target = torch.arange(len(self.packed)) % values
        labels = torch.full_like(self.input_ids, -100)
        labels[self.attention_mask.bool()] = target
        return target, labels


def close(ours: Tensor, theirs: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)


def save_reference(kind: Any, config: Any, folder: Path) -> Any:
    """A peer with random parameters in a folder: norms and biases too, so that nothing agrees by chance."""
    torch.manual_seed(0)
    reference = kind(config)
    for parameter in reference.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    reference.eval().save_pretrained(folder)
    return reference


def compare_states(model: Model, hidden_states: Any, batch: Ragged) -> Tensor:
    """Every layer is the peer's; the last is returned."""
    ours = model.backbone(batch.packed, keep="all")
    assert len(ours.layers) == len(hidden_states)
    for layer, expected in zip(ours.layers, hidden_states, strict=True):
        close(layer, batch.flat(expected))
    return ours.last


def compare_gradients(model: Model, reference: Any) -> None:
    """Gradients are the peer's, by its own names, and it has no others; tied parameters have several names there."""
    theirs = {name: p for name, p in reference.named_parameters(remove_duplicate=False) if p.grad is not None}
    ours, rest = model.family.table.write({n: p.grad for n, p in model.root.named_parameters() if p.grad is not None})
    assert not rest
    assert {id(theirs[name]) for name in ours} == {id(p) for p in theirs.values()}
    for name, gradient in ours.items():
        close(gradient, theirs[name].grad, 1e-4)


def compare_mlm(reference: Any, folder: Path, batch: Ragged, every: int = 1, objective: str = "mlm") -> Model:
    """Hidden states (of the peer's, `every` so many), logits, loss and gradients."""
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
    """What we write, we and the peer read again; the second export is the first, byte for byte."""
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
    """A classifier of ours gives the same answers as the peer that loads it, and comes back from there.

    `unused` are parts that the peer has and makes no use of.
    """
    from transformers import AutoModelForSequenceClassification

    labels = ["bad", "good", "so so"]
    objective = parse_objective("classify", labels=tuple(labels), pooling=family.poolings.get("", "start"))
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


def compare_texts(reference: Any, dress: Any, folder: Path, texts: list[str], pairs: list[str] | None = None) -> Model:
    """Texts, and pairs of them, have the same ids and the same states in a bare peer and in what we load from its folder.

    `dress` is the tokenizer of `transformers` in that folder.
    """
    model = load_model(folder)
    for second in (None,) if pairs is None else (None, pairs):
        given = dress(texts, second, padding=True, return_tensors="pt")
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
    """Two models of the same names and numbers."""
    ours, theirs = first.tensors(), second.tensors()
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def check_folder_and_back(model: Model, mixture: Mixture, folder: Path) -> None:
    """A model with random numbers everywhere goes to a folder and back, and again, byte by byte the same."""
    model.add_heads(mixture.objectives)
    for parameter in model.root.parameters():
        torch.nn.init.normal_(parameter)
    model.save(folder / "a")
    assert not (folder / "a" / "head.safetensors").exists()  # the layout has a place for everything
    again = load_model(folder / "a", mixture)
    again.save(folder / "b")
    for name in ("model.safetensors", "config.json"):
        assert (folder / "a" / name).read_bytes() == (folder / "b" / name).read_bytes()
    for name, tensor in model.root.tensors().items():
        assert torch.equal(tensor, again.root.tensors()[name])
