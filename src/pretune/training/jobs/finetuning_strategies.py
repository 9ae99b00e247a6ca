"""Fine-tuning strategies: which parameters of a pretrained model are trained, and from when.

frozen            freeze the backbone; train only the head
top(4)            train the four upper layers
gradual(0.5)      unfreeze layer by layer from the top, until half of the training (Howard and Ruder, 2018, ULMFiT)
reset(2)          reinitialize the two upper layers (Zhang et al., 2021)
lora(8)           train low-rank adapters of rank 8 instead of the matrices (Hu et al., 2022)
sparse(0.8)       prune four fifths of all weights gradually by magnitude (Zhu and Gupta, 2017)
int8              quantization-aware training (Zafrir et al., 2019, Q8BERT)
freelb(3)         adversarial training with three perturbations of the embeddings per step (Zhu et al., 2020)
smart(1)          predictions that are smooth and change slowly, by two regularizers of weight 1 (Jiang et al., 2020)
gradual+reset(1)  several together
features          freeze the backbone; fit the head by logistic or ridge regression instead of gradient descent
contrastive       tune the encoder by supervised contrastive learning, then fit the head as `features` does (Tunstall et al., 2022)
auto              compare several by cross-validation (see pretune.training.jobs.strategies)

The learning rate of each layer is set by the optimizer's layer_decay.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from pretune.models.model import Model
from pretune.nn.dropout import disable_dropout
from pretune.nn.lora import add_lora, merge_lora
from pretune.nn.magnitude_pruning import GradualMagnitudePruning
from pretune.nn.quantized.quantization_aware import add_fake_quantization, remove_fake_quantization
from pretune.objectives import Mixture, Task
from pretune.objectives.tasks.adversarial import AdversarialTask
from pretune.objectives.tasks.smoothness import ReferenceModel, SmoothTask
from pretune.objectives.tasks.supervised_contrast import SupervisedContrast
from pretune.runtime.errors import PretuneError, suggest
from pretune.training.callbacks import Callback
from pretune.training.optim.proximal_point import ProximalPoint

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
    "smart": 1.0,
    "features": 0.0,
    "contrastive": 0.1,
}
FITS_HEAD = frozenset({"features", "contrastive"})  # strategies that fit the head by regression
AUTO = "auto"


@dataclass(frozen=True)
class Strategy:
    """A fine-tuning strategy, as a mapping from the names of its parts, such as gradual unfreezing, to their arguments.

    >>> parse_strategy("gradual+reset(2)").parts
    {'gradual': 0.5, 'reset': 2.0}
    """

    parts: dict[str, float]
    reference: ReferenceModel = field(default_factory=ReferenceModel, compare=False, repr=False)  # of `smart`

    def prepare(self, model: Model, seed: int = 0) -> dict[Tensor, float]:
        """Change a model as a fine-tuning strategy requires: freeze or reinitialize layers, or add adapters.

        Return, for parameters that are frozen at the beginning, the share of training after which they are trained.
        """
        starts: dict[Tensor, float] = {}
        groups = model.backbone.groups()
        # Layers are reinitialized before adapters are added to them.
        for name, value in sorted(self.parts.items(), key=lambda part: part[0] != "reset"):
            match name:
                case "frozen" | "features":
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
        """Return `mixture` with `task` wrapped in the strategy's additional losses, such as adversarial training."""
        learned: Any = task
        if "contrastive" in self.parts:
            learned = SupervisedContrast(learned, self.parts["contrastive"])
        if "freelb" in self.parts:
            learned = AdversarialTask(learned, steps=int(self.parts["freelb"]))
        if "smart" in self.parts:
            if not task.distillable:
                raise PretuneError(
                    f"strategy smart: it compares predictions of classes or numbers, which the task {task.name} does not "
                    "make; use freelb"
                )
            learned = SmoothTask(learned, self.reference, self.parts["smart"])
        return mixture if learned is task else mixture.with_part(learned)

    @property
    def trains(self) -> bool:
        """Whether the strategy trains parameters by gradient descent."""
        return "features" not in self.parts

    @property
    def fits_head(self) -> bool:
        """Whether the strategy fits the task's head by regression, after all other parameters are trained."""
        return bool(FITS_HEAD & self.parts.keys())

    def update_hook(self, model: Model) -> Callable[[float], None] | None:
        """Return the function that prunes a model after each update, or None if the strategy does not prune.

        The argument of the function is the used share of the training budget.
        """
        return GradualMagnitudePruning(model.backbone, self.parts["sparse"]) if "sparse" in self.parts else None

    def callbacks(self) -> tuple[Callback, ...]:
        """Return the callbacks of the training loop that the strategy needs."""
        return (ProximalPoint(self.reference),) if "smart" in self.parts else ()

    def finish(self, model: Model) -> dict[str, float]:
        """Merge the adapters into a fine-tuned model, and return the activation ranges that int8 training measured.

        The result is empty for other strategies.
        """
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
    if {"freelb", "smart"} <= parts.keys():
        raise PretuneError(f"strategy {text!r}: freelb and smart both perturb the embeddings; choose one")
    if "smart" in parts and not parts["smart"] > 0:
        raise PretuneError(f"strategy {text!r}: the weight of smart must be above 0, for example smart(1)")
    if "features" in parts and len(parts) > 1:
        raise PretuneError(
            f"strategy {text!r}: 'features' only fits the head, so it cannot be combined with others; remove the other parts"
        )
    if "contrastive" in parts and not parts["contrastive"] > 0:
        raise PretuneError(f"strategy {text!r}: the temperature must be above 0, for example contrastive(0.1)")
    if not 0 < (share := parts.get("sparse", 0.5)) < 1:
        raise PretuneError(f"sparse({share:g}): the share of weights must be above 0 and below 1, for example 0.8")
    if "int8" in parts and {"frozen", "lora", "sparse"} & parts.keys():
        raise PretuneError(
            f"strategy {text!r}: int8 needs all weights to be trained; remove frozen, lora, or sparse from the strategy"
        )
    if "sparse" in parts and {"frozen", "top", "lora"} & parts.keys():
        raise PretuneError(
            f"strategy {text!r}: sparse needs all weights to be trained; remove frozen, top, or lora from the strategy"
        )
    return Strategy(parts)


def choose_strategy(text: str, task: str = "it", has_head: bool = True) -> Strategy:
    """Parse a fine-tuning strategy; raise an error if it would train nothing, because the task `task` has no head.

    The strategy "auto" is read as full fine-tuning.
    """
    strategy = parse_strategy("full" if text == AUTO else text)
    if "frozen" in strategy.parts and not has_head:
        raise PretuneError(f"strategy {text}: the task {task!r} has no head, so nothing would be trained; use full")
    return strategy


def freeze(module: nn.Module) -> None:
    """Freeze the parameters of a module, and turn its dropout off."""
    module.requires_grad_(False)
    disable_dropout(module)


def reinitialize_layers(model: Model, layers: int, seed: int) -> None:
    """Reinitialize the uppermost layers of a model at random; `layers` is their number."""
    random = model.random_backbone(seed + 1)  # the seed itself has initialized the parameters of a preset
    for (_, old), (_, new) in zip(model.backbone.groups()[-layers:], random.groups()[-layers:], strict=True):
        for module, source in zip(old, new, strict=True):
            module.load_state_dict(source.state_dict())


def check_layers(name: str, count: float, layers: int) -> None:
    """Raise an error unless `count`, the number in a strategy such as top(4), is an integer from 1 to `layers`.

    `name` is the name of the strategy in the error message.
    """
    if not 1 <= count <= layers or count != int(count):
        raise PretuneError(f"strategy {name}({count:g}): this model has {layers} layers; choose 1 to {layers}")
