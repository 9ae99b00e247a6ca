"""BigBird (Zaheer et al., 2020, arXiv:2007.14062): BERT with block-sparse attention (local, global and random blocks).

Each sequence is divided into blocks on its own, so its states do not depend on the rest of the batch (`transformers`
divides the padded batch).

Random blocks are drawn from the whole sequence, for each layer and head, and are the same in training and evaluation,
as in the paper. `transformers` draws them from the first 1,024 tokens at most, and in evaluation replaces them by the
first block; so its hidden states of texts of more than (5 + 2 · num_random_blocks) · block_size tokens differ.

Differences from the original: attention dropout is off by default; embedding dropout comes after the norm; classifiers
have no dropout before their first linear layer; the loss of `answer` includes the logits of question tokens, which
`transformers` masks (predicted answers never start there in either).
"""

from __future__ import annotations

from dataclasses import dataclass

from pretune.backbones.transformer_stack import TransformerStack
from pretune.families.encoders import bert
from pretune.families.family import Family, encoder_classes
from pretune.families.parameter_names import NameTable
from pretune.nn.attention.big_bird import BlockSparseAttention
from pretune.nn.feed_forward import ACTIVATIONS, FeedForward
from pretune.nn.initialization import initialize
from pretune.nn.linear import LayerNorm
from pretune.nn.output_heads import ResidualFeedForward

FULL, SPARSE = "original_full", "block_sparse"


@dataclass(frozen=True)
class BigBirdConfig(bert.BertConfig):
    """The configuration of BigBird: BERT's keys and those of block-sparse attention."""

    vocab_size: int = 50358
    hidden_act: str = "gelu_new"
    max_position_embeddings: int = 4096
    attention_type: str = SPARSE
    block_size: int = 64
    num_random_blocks: int = 3
    use_bias: bool = True
    rescale_embeddings: bool = False
    # Written even if None: `transformers` would otherwise assume the ids of the published vocabulary.
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    sep_token_id: int | None = None

    def attention(self, layer: int) -> BlockSparseAttention | None:
        """Return the block-sparse attention of the layer with the index `layer`, or None for full attention."""
        if self.attention_type == FULL:
            return None
        return BlockSparseAttention(
            self.hidden_size,
            self.num_attention_heads,
            size=self.block_size,
            random=self.num_random_blocks,
            blocks=-(-self.max_position_embeddings // self.block_size),
            layer=layer,
            dropout=self.attention_probs_dropout_prob,
        )


def build(config: BigBirdConfig) -> TransformerStack:
    """Build the BigBird backbone from its configuration."""
    width, activation = config.hidden_size, ACTIVATIONS[config.hidden_act]
    return bert.encoder_of(
        config,
        embed=bert.embeddings_of(config, width, scale=width**0.5 if config.rescale_embeddings else 1.0),
        layers=[bert.layer_of(config, config.attention(number)) for number in range(config.num_hidden_layers)],
        pooler_activation=config.hidden_act,
        choice_pooler=bert.pooler_of(config),
        answerer=lambda: initialize(
            ResidualFeedForward(
                FeedForward(width, config.intermediate_size, activation),
                LayerNorm(width, config.layer_norm_eps),
                config.hidden_dropout_prob,
            ),
            config.initializer_range,
        ),
    )


BIG_BIRD = Family(
    name="big_bird",
    config=BigBirdConfig,
    build=build,
    template=bert.BERT.template,
    table=NameTable(
        *bert.encoder_rows("bert"),
        *bert.MLM_ROWS,
        ("classifier.dense.{p}", "heads.classify.pooler.dense.{p}"),
        ("classifier.out_proj.{p}", "heads.classify.output.{p}"),
        ("classifier.{p}", "heads.tag.output.{p}"),
        ("bert.pooler.{p}", "heads.choose.pooler.dense.{p}"),
        ("classifier.{p}", "heads.choose.output.{p}"),
        ("qa_classifier.intermediate.dense.{p}", "heads.answer.transform.feed_forward.inner.{p}"),
        ("qa_classifier.output.dense.{p}", "heads.answer.transform.feed_forward.output.{p}"),
        ("qa_classifier.output.LayerNorm.{p}", "heads.answer.transform.norm.{p}"),
        ("qa_classifier.qa_outputs.{p}", "heads.answer.output.{p}"),
        prefix="bert.",
        embedding=("bert.embeddings.word_embeddings.weight",),
        output=bert.MLM_OUTPUT,
        copied=bert.MLM_COPIED,
        unused=bert.unused("bert"),
        unsupported={"cls.seq_relationship.{p}": "the head of pairs"},
    ),
    classes=encoder_classes("BigBird"),
    other_classes={"BigBirdForPreTraining": frozenset({"mlm"}), "BigBirdForCausalLM": frozenset({"mlm"})},
    supported={**bert.SUPPORTED, "attention_type": (SPARSE, FULL), "use_bias": (True,)},
)
