"""ViLBERT (Lu et al., 2019, arXiv:1908.02265): BERT for texts, beside a stream for image regions, with co-attention.

Parameter names are those of the released code (vilbert-multi-task). Differences from the original: attention dropout is off by
default, and regions that overlap a masked one are not hidden with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from pretune.backbones.two_streams import CoAttentionBridge, PairPooler, TwoStreams
from pretune.families.encoders import bert
from pretune.families.family import Family
from pretune.families.parameter_names import TOKEN_HEADS, NameTable, Row
from pretune.nn.attention.multi_head import CrossAttention, SelfAttention, head_width_of
from pretune.nn.embedding.region_embedding import RegionEmbedding
from pretune.nn.feed_forward import ACTIVATIONS
from pretune.nn.initialization import initialize
from pretune.nn.linear import LayerNorm
from pretune.nn.output_heads import DenseTransform, TokenHead
from pretune.runtime.errors import PretuneError


@dataclass(frozen=True)
class ViLBertConfig(bert.BertConfig):
    """The configuration of ViLBERT: BERT's keys for the text, v_ for the regions, and bi_ for the bridges between them."""

    v_feature_size: int = 2048
    v_target_size: int = 1601  # classes of the detector
    v_hidden_size: int = 1024
    v_num_hidden_layers: int = 6
    v_num_attention_heads: int = 8
    v_intermediate_size: int = 1024
    v_hidden_act: str = "gelu"
    v_hidden_dropout_prob: float = 0.1
    v_attention_probs_dropout_prob: float = 0.0
    bi_hidden_size: int = 1024
    bi_num_attention_heads: int = 8
    v_biattention_id: tuple[int, ...] = (0, 1, 2, 3, 4, 5)  # layers of regions before each bridge
    t_biattention_id: tuple[int, ...] = (6, 7, 8, 9, 10, 11)  # layers of the text before each bridge


def build(config: ViLBertConfig) -> TwoStreams:
    """Build the ViLBERT backbone from its configuration."""
    width, region_width = config.hidden_size, config.v_hidden_size
    bridges = len(config.t_biattention_id)
    if len(config.v_biattention_id) != bridges:
        raise PretuneError(
            f"v_biattention_id has {len(config.v_biattention_id)} numbers and t_biattention_id {bridges}; "
            "in config.json, give one of each for every bridge"
        )
    region_layer = partial(
        bert.post_norm_layer,
        width=region_width,
        inner=config.v_intermediate_size,
        activation=ACTIVATIONS[config.v_hidden_act],
        eps=config.layer_norm_eps,
        dropout=config.v_hidden_dropout_prob,
    )
    across = partial(
        CrossAttention,
        heads=config.bi_num_attention_heads,
        head_width=head_width_of(config.bi_hidden_size, config.bi_num_attention_heads),
    )

    def bridge() -> CoAttentionBridge:
        # The dropout of attention weights is that of the stream whose states are the keys.
        from_text = across(width, source_width=region_width, dropout=config.v_attention_probs_dropout_prob)
        from_regions = across(region_width, source_width=width, dropout=config.attention_probs_dropout_prob)
        return CoAttentionBridge(bert.layer_of(config, from_text), region_layer(from_regions))

    def own_layer() -> SelfAttention:
        return SelfAttention(region_width, config.v_num_attention_heads, dropout=config.v_attention_probs_dropout_prob)

    def region_head() -> TokenHead:
        norm = LayerNorm(region_width, config.layer_norm_eps)
        transform = DenseTransform(region_width, ACTIVATIONS[config.v_hidden_act], norm)
        return initialize(TokenHead(region_width, config.v_target_size, transform), config.initializer_range)

    def pair_pooler() -> PairPooler:
        pooler = partial(DenseTransform, activation=ACTIVATIONS["relu"], outputs=config.bi_hidden_size)
        both = PairPooler(pooler(width), pooler(region_width), config.bi_hidden_size)
        return initialize(both, config.initializer_range)

    embed = bert.embeddings_of(config, width)
    streams = TwoStreams(
        embed,
        RegionEmbedding(
            config.v_feature_size, region_width, eps=config.layer_norm_eps, dropout=config.hidden_dropout_prob
        ),
        [bert.layer_of(config) for _ in range(config.num_hidden_layers)],
        [region_layer(own_layer()) for _ in range(config.v_num_hidden_layers)],
        [bridge() for _ in range(bridges)],
        text_before=config.t_biattention_id,
        regions_before=config.v_biattention_id,
        vocabulary_head=lambda: bert.vocabulary_head_of(config, ACTIVATIONS[config.hidden_act], width),
        region_head=region_head,
        pair_pooler=pair_pooler,
        pooler=bert.pooler_of(config),
    )
    return initialize(streams, config.initializer_range)


def region_rows() -> list[Row]:
    """Return pairs of published and pretune parameter names for the stream of regions."""
    layer, ours = "bert.encoder.v_layer.{i}", "backbone.region_layers.{i}"
    embeddings = "bert.v_embeddings"
    return [
        (f"{embeddings}.image_embeddings.{{p}}", "backbone.embed_regions.features.{p}"),
        (f"{embeddings}.image_location_embeddings.{{p}}", "backbone.embed_regions.location.{p}"),
        (f"{embeddings}.LayerNorm.{{p}}", "backbone.embed_regions.norm.{p}"),
        (
            [f"{layer}.attention.self.{part}.{{p}}" for part in ("query", "key", "value")],
            f"{ours}.attention.part.qkv.{{p}}",
        ),
        (f"{layer}.attention.output.dense.{{p}}", f"{ours}.attention.part.output.{{p}}"),
        (f"{layer}.attention.output.LayerNorm.{{p}}", f"{ours}.attention.norm.{{p}}"),
        (f"{layer}.intermediate.dense.{{p}}", f"{ours}.feed_forward.part.inner.{{p}}"),
        (f"{layer}.output.dense.{{p}}", f"{ours}.feed_forward.part.output.{{p}}"),
        (f"{layer}.output.LayerNorm.{{p}}", f"{ours}.feed_forward.norm.{{p}}"),
    ]


def bridge_rows() -> list[Row]:
    """Return pairs of published and pretune parameter names for the bridges: 1 are the regions, and 2 is the text."""
    bridge = "bert.encoder.c_layer.{i}"
    rows: list[Row] = []
    for own, other, stream, name in ((1, 2, "regions", "v"), (2, 1, "text", "t")):
        ours = f"backbone.bridges.{{i}}.{stream}"
        across = f"{ours}.attention.part"
        rows += [
            (f"{bridge}.biattention.query{own}.{{p}}", f"{across}.query.{{p}}"),
            (
                [f"{bridge}.biattention.{part}{other}.{{p}}" for part in ("key", "value")],
                f"{across}.key_value.{{p}}",
            ),
            (f"{bridge}.biOutput.dense{own}.{{p}}", f"{across}.output.{{p}}"),
            (f"{bridge}.biOutput.LayerNorm{own}.{{p}}", f"{ours}.attention.norm.{{p}}"),
            (f"{bridge}.{name}_intermediate.dense.{{p}}", f"{ours}.feed_forward.part.inner.{{p}}"),
            (f"{bridge}.{name}_output.dense.{{p}}", f"{ours}.feed_forward.part.output.{{p}}"),
            (f"{bridge}.{name}_output.LayerNorm.{{p}}", f"{ours}.feed_forward.norm.{{p}}"),
        ]
    return rows


def head_rows() -> list[Row]:
    """Return pairs of published and pretune parameter names for the heads; itm and vqa have the same poolers."""
    poolers: list[Row] = [
        (f"bert.{published}_pooler.dense.{{p}}", f"heads.{head}.pooler.{ours}.dense.{{p}}")
        for head in ("itm", "vqa")
        for published, ours in (("t", "text"), ("v", "regions"))
    ]
    return [
        *poolers,
        ("cls.bi_seq_relationship.{p}", "heads.itm.output.{p}"),
        ("cls.imagePredictions.transform.dense.{p}", "heads.mrm.transform.dense.{p}"),
        ("cls.imagePredictions.transform.LayerNorm.{p}", "heads.mrm.transform.norm.{p}"),
        ("cls.imagePredictions.decoder.{p}", "heads.mrm.output.{p}"),
        ("vil_prediction.logit_fc.0.{p}", "heads.vqa.transform.dense.{p}"),
        ("vil_prediction.logit_fc.2.{p}", "heads.vqa.transform.norm.{p}"),
        ("vil_prediction.logit_fc.3.{p}", "heads.vqa.output.{p}"),
    ]


VILBERT = Family(
    name="vilbert",
    config=ViLBertConfig,
    build=build,
    template=bert.BERT.template,
    table=NameTable(
        *bert.encoder_rows("bert"),
        *region_rows(),
        *bridge_rows(),
        *bert.MLM_ROWS,
        *head_rows(),
        *TOKEN_HEADS,
        prefix="bert.",
        embedding=("bert.embeddings.word_embeddings.weight",),
        output=bert.MLM_OUTPUT,
        copied=bert.MLM_COPIED,
        unused={
            **bert.unused("bert"),
            "bert.encoder.c_layer.{i}.biOutput.q_dense{j}.{p}": "the released code does not use this layer",
        },
        unsupported={
            "vil_prediction_gqa.logit_fc.{i}.{p}": "answers to GQA",
            "vil_binary_prediction.logit_fc.{i}.{p}": "two classes for a pair of images",
            "vil_logit.{p}": "a score for choosing among texts or images",
            "vil_tri_prediction.{p}": "visual entailment",
            "vision_logit.{p}": "a score per region",
            "linguisic_logit.{p}": "a score per token",
        },
        renamed={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias", "module.": ""},
    ),
    classes={
        frozenset(): "ViLBertModel",
        frozenset({"mlm", "mrm", "itm"}): "BertForMultiModalPreTraining",
        frozenset({"vqa"}): "VILBertForVLTasks",
    },
    supported={
        **bert.SUPPORTED,
        "fusion_method": ("mul",),
        "visual_target": (0,),  # the classes of regions, not their features
        "model": ("bert",),
        "with_coattention": (True,),
        "dynamic_attention": (False,),
        "in_batch_pairs": (False,),
        "task_specific_tokens": (False,),
    },
    harmless={
        "bi_intermediate_size": "the released code does not use it; bridges have intermediate_size and v_intermediate_size",
        "bi_attention_type": "the released code does not use it",
        "pooling_method": "the released code does not use it; see fusion_method",
        "v_initializer_range": "the released code does not use it",
        "fast_mode": "one text for many images, without another result",
        "fixed_t_layer": "layers that are not trained",
        "fixed_v_layer": "layers that are not trained",
        "objective": "a setting of pretraining",
        "num_negative": "a setting of pretraining",
        "visualization": "a setting of the demonstration",
    },
    in_transformers=False,
)
