"""Static word vectors as a baseline model without layers: word2vec, GloVe, fastText.

Mikolov et al., 2013 (arXiv:1301.3781); Pennington et al., 2014; Bojanowski et al., 2017 (arXiv:1607.04606). The model
ignores the order of words and separators between texts; the two texts of a pair are told apart by their segments, which
are pooled separately.
"""

from __future__ import annotations

from dataclasses import dataclass

from pretune.backbones.word_vectors import WordVectorBackbone
from pretune.families.family import Family
from pretune.families.parameter_names import NameTable
from pretune.nn.embedding.token_embedding import Embeddings
from pretune.nn.initialization import initialize_uniform
from pretune.text.tokenizers.template import Template


@dataclass(frozen=True)
class WordVectorsConfig:
    """The configuration of static word vectors: one field per key of config.json."""

    vocab_size: int = 400000
    hidden_size: int = 300


def build(config: WordVectorsConfig) -> WordVectorBackbone:
    """Build the word-vector backbone from its configuration."""
    return initialize_uniform(WordVectorBackbone(Embeddings(config.vocab_size, config.hidden_size)), 0.05)


WORD_VECTORS = Family(
    name="word-vectors",
    config=WordVectorsConfig,
    build=build,
    template=Template(single=("A",), pair=("B",)),
    table=NameTable(("embed.tokens", "backbone.embed.tokens"), ("classifier.{p}", "heads.classify.output.{p}")),
    classes={frozenset(): "Static"},
    poolings={"": "pair"},
    in_transformers=False,
)
