"""Fine-tuning strategies: which parameters of a pretrained model are trained, and from when.

frozen            freeze the backbone; train only the head
top(4)            train the four upper layers
gradual(0.5)      unfreeze layer by layer from the top, until half of the training (Howard and Ruder, 2018, ULMFiT)
reset(2)          reinitialize the two upper layers (Zhang et al., 2021)
lora(8)           train low-rank adapters of rank 8 instead of the matrices (Hu et al., 2022)
sparse(0.8)       prune four fifths of all weights gradually by magnitude (Zhu and Gupta, 2017)
int8              quantization-aware training (Zafrir et al., 2019, Q8BERT)
freelb(3)         adversarial training with three perturbations of the embeddings per step (Zhu et al., 2020)
gradual+reset(1)  several together
auto              frozen or full, depending on the number of examples

The learning rate of each layer is set by the optimizer's layer_decay.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from pretune.models.model import Model
from pretune.nn.dropout import disable_dropout
from pretune.nn.lora import add_lora, merge_lora
from pretune.nn.magnitude_pruning import GradualMagnitudePruning
from pretune.nn.quantized.quantization_aware import add_fake_quantization, remove_fake_quantization
from pretune.objectives import Mixture, Task
from pretune.objectives.tasks.adversarial import AdversarialTask
from pretune.runtime.errors import PretuneError, suggest
from pretune.runtime.progress import log_info

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
# Examples below which `auto` freezes the backbone. The bundled model on the example messages, mean accuracy of two seeds,
# frozen and full: 20 labels 0.45 and 0.42, 40 labels 0.44 and 0.53, 80 labels 0.54 and 0.63, 160 labels 0.58 and 0.64.
FEW = 30


@dataclass(frozen=True)
class Strategy:
    """A fine-tuning strategy: a mapping from its parts, such as gradual unfreezing, to their arguments.

    >>> parse_strategy("gradual+reset(2)").parts
    {'gradual': 0.5, 'reset': 2.0}
    """

    parts: dict[str, float]

    def prepare(self, model: Model, seed: int = 0) -> dict[Tensor, float]:
        """Prepare a model for a fine-tuning strategy; return the share of training before each parameter unfreezes."""
        starts: dict[Tensor, float] = {}
        groups = model.backbone.groups()
        # Layers are reinitialized before adapters are added to them.
        for name, value in sorted(self.parts.items(), key=lambda part: part[0] != "reset"):
            match name:
                case "frozen":
                    freeze(model.backbone)
                case "top":
                    check_layers("top", value, len(groups) - 1)
                    for module in (module for _, modules in groups[: len(groups) - int(value)] for module in modules):
                        freeze(module)
                case "reset":
                    check_layers("reset", value, len(groups) - 1)
                    reinitialize_layers(model, int(value), seed)
                case "lora":
                    for module in (module for _, modules in groups for module in modules):
                        add_lora(module, int(value), scale=2.0)
                case "int8":
                    add_fake_quantization(model.backbone)
                case "gradual":
                    for depth, (_, modules) in enumerate(reversed(groups)):
                        start = value * depth / max(1, len(groups) - 1)
                        starts |= {p: start for module in modules for p in module.parameters()}
        return starts

    def wrap(self, mixture: Mixture, task: Task) -> Mixture:
        """Return the objectives to fine-tune with: `mixture`, with an adversarial `task` if the strategy has freelb."""
        if "freelb" not in self.parts:
            return mixture
        adversarial: Any = AdversarialTask(task, steps=int(self.parts["freelb"]))
        return mixture.with_part(adversarial)

    def update_hook(self, model: Model) -> Callable[[float], None] | None:
        """Return a function that prunes after each update, given the used share of training; None without pruning."""
        return GradualMagnitudePruning(model.backbone, self.parts["sparse"]) if "sparse" in self.parts else None

    def finish(self, model: Model) -> dict[str, float]:
        """Merge adapters into a fine-tuned model; return its activation ranges, empty if not trained for int8."""
        merge_lora(model.backbone)
        model.sparse = model.sparse or "sparse" in self.parts
        return remove_fake_quantization(model.backbone)


def parse_strategy(text: str) -> Strategy:
    """Return the fine-tuning strategy that an expression such as "gradual+reset(1)" describes."""
    parts: dict[str, float] = {}
    for part in text.split("+"):
        match = _PART.fullmatch(part)
        name = match["name"] if match else part.strip()
        if match is None or name not in DEFAULTS:
            raise PretuneError(f"there is no strategy {name!r}; {suggest(name, [*DEFAULTS, 'auto'])}")
        parts[name] = float(match["value"]) if match["value"] else DEFAULTS[name]
    if len({"frozen", "full", "top", "gradual", "lora"} & parts.keys()) > 1:
        raise PretuneError(f"strategy {text!r}: full, frozen, top, gradual, and lora exclude one another; choose one")
    if not 0 < (share := parts.get("sparse", 0.5)) < 1:
        raise PretuneError(f"sparse({share:g}): the share of weights must be above 0 and below 1, for example 0.8")
    if "int8" in parts and {"frozen", "lora", "sparse"} & parts.keys():
        raise PretuneError(
            f"strategy {text!r}: int8 needs all weights to be trained; leave out frozen, lora and sparse"
        )
    if "sparse" in parts and {"frozen", "top", "lora"} & parts.keys():
        raise PretuneError(f"strategy {text!r}: sparse needs all weights to be trained; leave out frozen, top and lora")
    return Strategy(parts)


def choose_strategy(text: str, examples: int, task: str = "it", has_head: bool = True) -> Strategy:
    """Parse a fine-tuning strategy; "auto" means frozen if the task has few examples and a head, otherwise full."""
    if text != "auto":
        strategy = parse_strategy(text)
        if "frozen" in strategy.parts and not has_head:
            raise PretuneError(f"strategy {text}: the task {task} has no head, so nothing would be trained; use full")
        return strategy
    if not has_head:
        log_info(f"strategy: full, because the task {task} has no head to train")
        return parse_strategy("full")
    chosen = "frozen" if examples < FEW else "full"
    why = f"fewer than {FEW}" if examples < FEW else f"{FEW} or more"
    log_info(f"strategy: {chosen}, for {examples:,} examples ({why})")
    return parse_strategy(chosen)


def freeze(module: nn.Module) -> None:
    """Freeze the parameters of a module, and turn its dropout off."""
    module.requires_grad_(False)
    disable_dropout(module)


def reinitialize_layers(model: Model, layers: int, seed: int) -> None:
    """Reinitialize the upper `layers` layers of a model at random."""
    random = model.random_backbone(seed + 1)  # the seed itself has initialized the parameters of a preset
    for (_, old), (_, new) in zip(model.backbone.groups()[-layers:], random.groups()[-layers:], strict=True):
        for module, source in zip(old, new, strict=True):
            module.load_state_dict(source.state_dict())


def check_layers(name: str, count: float, layers: int) -> None:
    """Raise an error if `count`, the number in a strategy such as top(4), is not an integer from 1 to `layers`."""
    if not 1 <= count <= layers or count != int(count):
        raise PretuneError(f"strategy {name}({count:g}): this model has {layers} layers; choose 1 to {layers}")
