"""Strategies: which parameters of a pretrained model move, and from when on.

frozen            the backbone stays as it is; features for a head
top(4)            its four upper layers move
gradual(0.5)      layer by layer from the top, all of them after half of the training (Howard and Ruder, 2018, ULMFiT)
reset(2)          the two upper layers start anew (Zhang et al., 2021)
lora(8)           matrices of rank 8 beside all others move instead of them (Hu et al., 2022)
sparse(0.8)       four fifths of all weights become 0, little by little (Zhu and Gupta, 2017)
int8              numbers are rounded as if they had 8 bits (Zafrir et al., 2019, Q8BERT)
freelb(3)         three adversarial pushes of the token vectors at each step (Zhu et al., 2020)
gradual+reset(1)  several together
auto              frozen or full, by how many examples there are

How fast each layer moves is the optimizer's layer_decay.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from pretune.models.model import Model
from pretune.nn.dropout import stop_dropout
from pretune.nn.lora import add_low_rank, merge_low_rank
from pretune.nn.magnitude_pruning import Sparsifier
from pretune.nn.quantized.quantization_aware import add_rounding, keep_rounded
from pretune.objectives import Mixture, Task
from pretune.objectives.tasks.adversarial import Adversarial
from pretune.runtime.errors import PretuneError, nearest
from pretune.runtime.progress import say

_PART = re.compile(r"\s*(?P<name>\w+)\s*(?:\(\s*(?P<value>[\d.]+)\s*\))?\s*")
DEFAULTS = {
    "full": 0.0,
    "frozen": 0.0,
    "top": 4.0,
    "gradual": 0.5,
    "reset": 1.0,
    "lora": 8.0,
    "sparse": 0.8,
    "int8": 0.0,
    "freelb": 3.0,
}
# Examples below which `auto` leaves the backbone as it is. The boxed model on the example messages, mean accuracy of two seeds,
# frozen and full: 20 labels 0.45 and 0.42, 40 labels 0.44 and 0.53, 80 labels 0.54 and 0.63, 160 labels 0.58 and 0.64.
FEW = 30


@dataclass(frozen=True)
class Strategy:
    """Parts by name, each with its number.

    >>> parse_strategy("gradual+reset(2)").parts
    {'gradual': 0.5, 'reset': 2.0}
    """

    parts: dict[str, float]

    def prepare(self, model: Model, seed: int = 0) -> dict[Tensor, float]:
        """Change a model before its training; the share of it from which on each parameter moves, if not at once."""
        starts: dict[Tensor, float] = {}
        groups = model.backbone.groups()
        # New parameters come before others beside them.
        for name, value in sorted(self.parts.items(), key=lambda part: part[0] != "reset"):
            match name:
                case "frozen":
                    freeze(model.backbone)
                case "top":
                    check_layers("top", value, len(groups) - 1)
                    for _, modules in groups[: len(groups) - int(value)]:
                        for module in modules:
                            freeze(module)
                case "reset":
                    check_layers("reset", value, len(groups) - 1)
                    start_anew(model, int(value), seed)
                case "lora":
                    for _, modules in groups:
                        for module in modules:
                            add_low_rank(module, int(value), scale=2.0)
                case "int8":
                    add_rounding(model.backbone)
                case "gradual":
                    for depth, (_, modules) in enumerate(reversed(groups)):
                        moves = value * depth / max(1, len(groups) - 1)
                        starts |= {p: moves for module in modules for p in module.parameters()}
        return starts

    def wrap(self, mixture: Mixture, task: Task) -> Mixture:
        """The objectives as they are trained."""
        if "freelb" in self.parts:
            pushed: Any = Adversarial(task, steps=int(self.parts["freelb"]))
            return mixture.with_part(pushed)
        return mixture

    def after(self, model: Model) -> Callable[[float], None] | None:
        """What happens to the parameters after each step, given the share of the training that is over."""
        return Sparsifier(model.backbone, self.parts["sparse"]) if "sparse" in self.parts else None

    def finish(self, model: Model) -> dict[str, float]:
        """Make a trained model one like any other, and return the ranges of activations that int8 learned, if it did."""
        merge_low_rank(model.backbone)
        model.sparse = model.sparse or "sparse" in self.parts
        return keep_rounded(model.backbone)


def parse_strategy(text: str) -> Strategy:
    """Read an expression."""
    parts: dict[str, float] = {}
    for part in text.split("+"):
        found = _PART.fullmatch(part)
        if found is None or found["name"] not in DEFAULTS:
            name = found["name"] if found else part.strip()
            raise PretuneError(f"unknown strategy {name!r}; {nearest(name, [*DEFAULTS, 'auto'])}")
        parts[found["name"]] = float(found["value"]) if found["value"] else DEFAULTS[found["name"]]
    if len({"frozen", "full", "top", "gradual", "lora"} & parts.keys()) > 1:
        raise PretuneError(f"strategy {text!r}: only one of full, frozen, top, gradual and lora can say what moves")
    check_share("sparse", parts.get("sparse", 0.5))
    if "int8" in parts and {"frozen", "lora", "sparse"} & parts.keys():
        raise PretuneError(f"strategy {text!r}: matrices are rounded while all of them move; leave out the other part")
    if "sparse" in parts and {"frozen", "top", "lora"} & parts.keys():
        raise PretuneError(f"strategy {text!r}: weights become 0 while all of them move; leave out the other part")
    return Strategy(parts)


def choose_strategy(text: str, examples: int, task: str = "it", has_head: bool = True) -> Strategy:
    """The strategy of an expression; of `auto`, by the number of examples. A task without a head needs something else to move."""
    if text != "auto":
        strategy = parse_strategy(text)
        if "frozen" in strategy.parts and not has_head:
            raise PretuneError(f"strategy {text}: {task} has no parameters of its own, and nothing else would move")
        return strategy
    if not has_head:
        say(f"strategy: full, as {task} has no parameters of its own")
        return parse_strategy("full")
    chosen = "frozen" if examples < FEW else "full"
    why = f"fewer than {FEW}" if examples < FEW else f"{FEW} or more"
    say(f"strategy: {chosen}, as there are {examples:,} examples ({why})")
    return parse_strategy(chosen)


def freeze(module: nn.Module) -> None:
    """Nothing in it moves, and nothing is dropped out."""
    module.requires_grad_(False)
    stop_dropout(module)


def start_anew(model: Model, layers: int, seed: int) -> None:
    """Give the upper layers the parameters of a model that was never trained."""
    fresh = model.random_backbone(seed + 1)  # a preset's own parameters were drawn from the seed itself
    for (_, old), (_, new) in zip(model.backbone.groups()[-layers:], fresh.groups()[-layers:], strict=True):
        for module, twin in zip(old, new, strict=True):
            module.load_state_dict(twin.state_dict())


def check_share(name: str, share: float) -> None:
    """Refuse to leave nothing, or everything."""
    if not 0 < share < 1:
        raise PretuneError(f"{name}({share:g}): a share of the weights is above 0 and below 1, say 0.8")


def check_layers(name: str, wanted: float, known: int) -> None:
    """Refuse more layers than there are."""
    if not 1 <= wanted <= known or wanted != int(wanted):
        raise PretuneError(f"strategy {name}({wanted:g}): this model has {known} layers; name 1 to {known} of them")
