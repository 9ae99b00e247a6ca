"""Combinations of objectives: joint objectives share one forward pass, mixtures alternate between joint objectives."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import nn

from pretune.backbones.backbone import Backbone
from pretune.objectives.objective import Data, Loss, Objective
from pretune.objectives.wrappers import CachedBackbone
from pretune.packed import Batch, Capacity
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.packing.sequences import Epoch, Packing, Sequences
from pretune.text.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class JointObjective:
    """A weighted sum of objectives that share their sequences and one forward pass; often a single objective."""

    parts: tuple[tuple[float, Objective], ...]  # weight of the loss, objective

    def __post_init__(self) -> None:
        parts = self.objectives
        names = [part.name for part in parts]
        if len(set(names)) < len(names):
            raise PretuneError(
                f"objective {self}: an objective appears more than once in the sum; give it a weight instead, as in 2*{names[0]}"
            )
        alone = next((part for part in parts if part.companion and part.companion not in names), None)
        if alone is not None:
            raise PretuneError(
                f"objective {self}: {alone.name} needs {alone.companion} in the same sum; write {alone.companion}+{alone.name}"
            )
        arranging = {part.arrangement: part.name for part in parts if part.owns_arrangement}
        two_sided = [part.name for part in parts if part.two_sided]
        adding = [part.name for part in parts if part.adds_tokens]
        corrupting = [part.name for part in parts if part.corrupts]
        problem = ""
        if len(arranging) > 1:
            problem = f"{' and '.join(arranging.values())} each need their own arrangement of the text"
        elif two_sided and len(parts) > 1:
            problem = (
                f"{two_sided[0]} reads a source and generates a target, and cannot share them with another objective"
            )
        elif adding and len(parts) > 1:
            problem = f"{adding[0]} adds tokens to the text, and cannot share it with another objective"
        elif len(corrupting) > 1:
            problem = f"{' and '.join(corrupting)} each corrupt the text"
        elif len({part.pattern for part in parts if part.pattern}) > 1:
            patterns = " and ".join(f"{part.name} {part.pattern.name}" for part in parts if part.pattern)
            problem = f"incompatible attention patterns ({patterns})"
        if problem:
            raise PretuneError(
                f"objective {self}: {problem}; alternate the objectives with |, as in a|b, instead of adding them with +"
            )

    def __str__(self) -> str:
        return "+".join(part.name if weight == 1 else f"{weight:g}*{part.name}" for weight, part in self.parts)

    @property
    def objectives(self) -> list[Objective]:
        """Return the objectives of the sum, without their weights."""
        return [part for _, part in self.parts]

    @property
    def stateful(self) -> bool:
        """Return whether each batch continues the sequences of the previous batch (truncated BPTT)."""
        return any(part.stateful for part in self.objectives)

    @property
    def reads_all_layers(self) -> bool:
        """Return whether any of the objectives reads all layers of the backbone, not only the last."""
        return any(part.reads_all_layers for part in self.objectives)

    @property
    def static_masks(self) -> int:
        """Return the number of epochs after which the same random masks are used again; 0 if never."""
        return max(part.static_masks for part in self.objectives)

    def arrange(self, data: Data, packing: Packing, draws: EpochRandom) -> Epoch:
        """Divide data into batches by the `arrange` method of one objective, because all objectives share the batches.

        It is the first objective that needs its own arrangement (`owns_arrangement`) or, if none does, the first one.
        """
        chosen = next((part for part in self.objectives if part.owns_arrangement), self.objectives[0])
        return chosen.arrange(data, packing, draws.repeat(self.static_masks))

    def corrupt(self, sequences: Sequences, tokenizer: Tokenizer, draws: EpochRandom) -> Sequences:
        """Corrupt the sequences of a batch by each objective in turn; the result has the targets of all of them."""
        for part in sorted(self.objectives, key=lambda part: part.corrupts_last):
            sequences = part.corrupt(sequences, tokenizer, draws.repeat(self.static_masks))
        return sequences

    def max_targets(self, packing: Packing) -> dict[str, int]:
        """Return the maximum number of prediction targets per batch, by loss term."""
        return {term: count for part in self.objectives for term, count in part.max_targets(packing).items()}

    def capacity(self, packing: Packing) -> Capacity | None:
        """Return the fixed tensor shapes of batches within the limits `packing`, or None if shapes vary by batch."""
        room = self.max_targets(packing)
        for part in self.objectives:
            if packing.fixed and part.adds_tokens:
                return part.max_packing(packing).capacity(room)
            if packing.fixed and part.two_sided:
                first, second = (side.capacity(room) for side in part.sides(packing))
                assert first is not None
                return replace(first, second=second)
        return packing.capacity(room)

    def loss(self, heads: nn.ModuleDict, backbone: Backbone, batch: Batch) -> Loss:
        """Return the losses of all objectives on a batch, from one shared forward pass of the backbone.

        `heads` has the head of each objective by name.
        """
        # All layers contain the last one, so that the other objectives share the same forward pass.
        shared = CachedBackbone(backbone, keep="all" if self.reads_all_layers else None)
        total = Loss()
        for weight, part in sorted(self.parts, key=lambda part: not part[1].corrupts):
            loss = part.loss(heads[part.name], shared, batch)  # type: ignore[arg-type]
            if loss.packed is not None:  # without counts and rows, whose changes would cause recompilation
                batch = Batch(loss.packed, batch.targets, state=batch.state)
            total.sums |= loss.sums
            total.logs |= loss.logs
            total.weights |= {term: weight * loss.weights.get(term, 1.0) for term in loss.sums}
            total.state = loss.state if loss.state is not None else total.state
        return total


@dataclass(frozen=True)
class Mixture:
    """A mixture of JointObjectives (weighted sums), among which the training batches are divided by shares."""

    shares: tuple[tuple[float, JointObjective], ...]  # shares add up to 1

    def __str__(self) -> str:
        if len(self.shares) == 1:
            return str(self.shares[0][1])
        return "|".join(f"{share:.3g}*{joint}" for share, joint in self.shares)

    @property
    def joints(self) -> list[JointObjective]:
        """Return the JointObjectives of the mixture, without the share of the batches that each of them gets."""
        return [joint for _, joint in self.shares]

    @property
    def objectives(self) -> list[Objective]:
        """Return all objectives of the mixture, without duplicates."""
        return list({part.name: part for joint in self.joints for part in joint.objectives}.values())

    @property
    def stateful(self) -> bool:
        """Return whether each batch continues the sequences of the previous batch (truncated BPTT)."""
        return any(joint.stateful for joint in self.joints)

    @property
    def needs_host_sync(self) -> bool:
        """Return whether any loss synchronizes GPU and CPU, which CUDA graphs cannot record."""
        return any(part.needs_host_sync for part in self.objectives)

    def joined(self, objective: Objective) -> Mixture:
        """Return a copy of the mixture that also computes the loss of `objective` on every batch.

        The objective is added to each weighted sum, with the weight 1.
        """
        return Mixture(tuple((share, JointObjective((*joint.parts, (1.0, objective)))) for share, joint in self.shares))

    def with_part(self, objective: Objective) -> Mixture:
        """Return a copy of the mixture in which `objective` replaces the objective of the same name."""
        replaced = [
            tuple((weight, objective if part.name == objective.name else part) for weight, part in joint.parts)
            for joint in self.joints
        ]
        return Mixture(
            tuple((share, JointObjective(parts)) for (share, _), parts in zip(self.shares, replaced, strict=True))
        )


def single_objective(objective: Objective) -> Mixture:
    """Return a mixture that contains only `objective`."""
    return Mixture(((1.0, JointObjective(((1.0, objective),))),))
