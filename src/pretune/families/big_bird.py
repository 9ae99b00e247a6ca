"""BigBird (Zaheer et al., 2020, arXiv:2007.14062): BERT's layers, whose tokens see blocks of tokens beside, at the ends and at
random.

Blocks are those of each sequence, whatever the batch (`transformers` has those of the longest sequence, padding included):
a sequence gives what it would give there alone.

Departures: attention dropout is off unless asked for; embeddings have their dropout after the norm; a classifier has no
dropout before its first matrix; random blocks are drawn anew (by the number of the layer, as there).
"""

from __future__ import annotations

from dataclasses import dataclass

from pretune.backbones.encoder import Encoder
from pretune.families.bert import (
    BERT,
    MLM_COPIED,
    MLM_OUTPUT,
    MLM_ROWS,
    ONLY,
    BertConfig,
    embeddings_of,
    encoder_rows,
    layer_of,
    unused,
    vocabulary_head_of,
)
from pretune.families.family import Family, Table
from pretune.nn.attention import ScoredAttention
from pretune.nn.feed_forward import ACTIVATIONS
from pretune.nn.heads import Transform
from pretune.nn.initialize import initialize
from pretune.nn.patterns import full
from pretune.nn.scores import BlockSparse, random_plan

FULL, SPARSE = "original_full", "block_sparse"


@dataclass(frozen=True)
class BigBirdConfig(BertConfig):
    """Keys of config.json: BERT's and some more."""

    vocab_size: int = 50358
    hidden_act: str = "gelu_new"
    max_position_embeddings: int = 4096
    attention_type: str = SPARSE
    block_size: int = 64
    num_random_blocks: int = 3
    use_bias: bool = True
    rescale_embeddings: bool = False
    # Written even if unknown: `transformers` would put in those of the published vocabulary.
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    sep_token_id: int | None = None

    def score(self, number: int) -> BlockSparse | None:
        """What a layer makes of blocks."""
        if self.attention_type == FULL:
            return None
        size, random = self.block_size, self.num_random_blocks
        blocks = -(-self.max_position_embeddings // size)
        return BlockSparse(size, random, random_plan(self.num_attention_heads, blocks, random, seed=number))


def build(config: BigBirdConfig) -> Encoder:
    """The whole wiring."""
    width, heads, dropout = config.hidden_size, config.num_attention_heads, config.attention_probs_dropout_prob
    activation = ACTIVATIONS[config.hidden_act]

    def attention(score: BlockSparse | None) -> ScoredAttention:
        pattern = full if score is None else score.pattern
        return ScoredAttention(width, heads, score, pattern=pattern, dropout=dropout)

    encoder = Encoder(
        embed=embeddings_of(config, width, scale=width**0.5 if config.rescale_embeddings else 1.0),
        layers=[layer_of(config, attention(config.score(number))) for number in range(config.num_hidden_layers)],
        vocabulary_head=lambda: vocabulary_head_of(config, activation, width),
        pooler=lambda: initialize(Transform(width, activation), config.initializer_range),
    )
    return initialize(encoder, config.initializer_range)


_SELF = "bert.encoder.layer.{i}.attention.self"
_PART = "backbone.layers.{i}.attention.part"

BIG_BIRD = Family(
    name="big_bird",
    config=BigBirdConfig,
    build=build,
    template=BERT.template,
    table=Table(
        *(row for row in encoder_rows("bert") if row[1] != f"{_PART}.qkv.{{p}}"),
        (f"{_SELF}.query.{{p}}", f"{_PART}.query.{{p}}"),
        ([f"{_SELF}.key.{{p}}", f"{_SELF}.value.{{p}}"], f"{_PART}.key_value.{{p}}"),
        *MLM_ROWS,
        ("classifier.dense.{p}", "heads.classify.pooler.dense.{p}"),
        ("classifier.out_proj.{p}", "heads.classify.output.{p}"),
        ("classifier.{p}", "heads.tag.output.{p}"),
        prefix="bert.",
        embedding=("bert.embeddings.word_embeddings.weight",),
        output=MLM_OUTPUT,
        copied=MLM_COPIED,
        unused={**unused("bert"), "bert.pooler.{p}": "of pairs, which the published models did not learn from"},
        unsupported={
            "cls.seq_relationship.{p}": "the head of pairs",
            "qa_classifier.{p}": "the head for questions",
            "qa_classifier.intermediate.dense.{p}": "the head for questions",
            "qa_classifier.output.{p}": "the head for questions",
            "qa_classifier.output.dense.{p}": "the head for questions",
            "qa_classifier.output.LayerNorm.{p}": "the head for questions",
            "qa_classifier.qa_outputs.{p}": "the head for questions",
        },
    ),
    classes={
        frozenset(): "BigBirdModel",
        frozenset({"mlm"}): "BigBirdForMaskedLM",
        frozenset({"classify"}): "BigBirdForSequenceClassification",
        frozenset({"tag"}): "BigBirdForTokenClassification",
    },
    other_classes={"BigBirdForPreTraining": frozenset({"mlm"}), "BigBirdForCausalLM": frozenset({"mlm"})},
    only={**ONLY, "attention_type": (SPARSE, FULL), "use_bias": (True,)},
)
