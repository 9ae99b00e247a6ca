"""ERNIE 1.0 (Sun et al., 2019, arXiv:1904.09223) and, with vectors of tasks, 2.0 (arXiv:1907.12412): BERT's wiring.

Departures: attention dropout is off unless asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

from pretune.backbones.encoder import Encoder
from pretune.families.encoders import bert
from pretune.families.family import Family
from pretune.nn.embeddings import Lookup


@dataclass(frozen=True)
class ErnieConfig(bert.BertConfig):
    """Keys of config.json: BERT's and two more."""

    task_type_vocab_size: int = 3
    use_task_id: bool = False


def build(config: ErnieConfig) -> Encoder:
    """BERT, with a vector of the task (column `task`; 0 where there is none) added to all tokens if the model has it."""
    tasks = [Lookup("task", config.task_type_vocab_size, config.hidden_size)] if config.use_task_id else []
    return bert.build(config, tasks)


ERNIE = Family(
    name="ernie",
    config=ErnieConfig,
    build=build,
    template=bert.BERT.template,
    table=bert.table("ernie", ("ernie.embeddings.task_type_embeddings.weight", "backbone.embed.columns.task.weight")),
    classes=bert.classes("Ernie"),
    other_classes={"ErnieForCausalLM": frozenset({"mlm"})},
    only={**bert.ONLY, "pool_act": ("tanh",), "task_id": (0,)},
    harmless={
        "enable_recompute": "how PaddlePaddle trains a model",
        "fuse": "how PaddlePaddle runs a model",
    },
)
