"""ERNIE 1.0 (Sun et al., 2019, arXiv:1904.09223) and 2.0 (arXiv:1907.12412): BERT, with task embeddings in 2.0.

Differences from the original: attention dropout is off by default.
"""

from __future__ import annotations

from dataclasses import dataclass

from pretune.backbones.transformer_stack import TransformerStack
from pretune.families.encoders import bert
from pretune.families.family import Family
from pretune.nn.embedding.token_embedding import ColumnEmbedding


@dataclass(frozen=True)
class ErnieConfig(bert.BertConfig):
    """The configuration of ERNIE: BERT's keys and those of task embeddings."""

    task_type_vocab_size: int = 3
    use_task_id: bool = False


def build(config: ErnieConfig) -> TransformerStack:
    """Build the ERNIE backbone: BERT, with an embedding of each token's `task` id if the configuration has task ids."""
    tasks = [ColumnEmbedding("task", config.task_type_vocab_size, config.hidden_size)] if config.use_task_id else []
    return bert.build(config, tasks)


ERNIE = Family(
    name="ernie",
    config=ErnieConfig,
    build=build,
    template=bert.BERT.template,
    table=bert.table("ernie", ("ernie.embeddings.task_type_embeddings.weight", "backbone.embed.columns.task.weight")),
    classes=bert.classes("Ernie"),
    other_classes={"ErnieForCausalLM": frozenset({"mlm"})},
    supported={**bert.SUPPORTED, "pool_act": ("tanh",), "task_id": (0,)},
    harmless={"enable_recompute": "a training setting of PaddlePaddle", "fuse": "a runtime setting of PaddlePaddle"},
)
