"""Word vectors: word2vec (Mikolov et al., 2013, arXiv:1301.3781), GloVe (Pennington et al., 2014), fastText (Bojanowski et al.,
2017, arXiv:1607.04606), as a model of no layers: the baseline that everything since is held against.

The order of words is lost, and with it a separator: the two texts of a pair are segments, and are pooled one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

from pretune.backbones.word_vectors import Static
from pretune.families.family import Family, Table
from pretune.nn.embeddings import Embeddings
from pretune.nn.initialization import initialize_evenly
from pretune.text.tokenizers.template import Template


@dataclass(frozen=True)
class WordVectorsConfig:
    """Keys of config.json."""

    vocab_size: int = 400000
    hidden_size: int = 300


def build(config: WordVectorsConfig) -> Static:
    """The whole wiring."""
    return initialize_evenly(Static(Embeddings(config.vocab_size, config.hidden_size)), 0.05)


WORD_VECTORS = Family(
    name="word-vectors",
    config=WordVectorsConfig,
    build=build,
    template=Template(single=("A",), pair=("B",)),
    table=Table(
        ("embed.tokens", "backbone.embed.tokens"),
        ("classifier.{p}", "heads.classify.output.{p}"),
    ),
    classes={frozenset(): "Static"},
    poolings={"": "pair"},
    elsewhere=False,
)
