"""Families by name: one file a published model, or several that share a wiring."""

from __future__ import annotations

from pretune.errors import PretuneError
from pretune.families.albert import ALBERT
from pretune.families.bart import BART
from pretune.families.bert import BERT
from pretune.families.big_bird import BIG_BIRD
from pretune.families.bilstm import BILSTM
from pretune.families.deberta import DEBERTA, DEBERTA_V2
from pretune.families.distilbert import DISTILBERT
from pretune.families.electra import ELECTRA
from pretune.families.elmo import ELMO
from pretune.families.elmo_transformer import ELMO_TRANSFORMER
from pretune.families.ernie import ERNIE
from pretune.families.family import Family
from pretune.families.gpt import GPT
from pretune.families.gpt2 import GPT2
from pretune.families.longformer import LONGFORMER
from pretune.families.lstm import LSTM
from pretune.families.marian import MARIAN
from pretune.families.mbart import MBART
from pretune.families.modernbert import MODERNBERT
from pretune.families.mpnet import MPNET
from pretune.families.performer import PERFORMER
from pretune.families.reformer import REFORMER
from pretune.families.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA
from pretune.families.seq2seq import SEQ2SEQ
from pretune.families.t5 import MT5, T5
from pretune.families.transfo_xl import TRANSFO_XL
from pretune.families.word_vectors import WORD_VECTORS
from pretune.families.xlm import XLM
from pretune.families.xlnet import XLNET

ENCODERS = (
    BERT,
    ROBERTA,
    XLM_ROBERTA,
    CAMEMBERT,
    MPNET,
    DISTILBERT,
    ELECTRA,
    ALBERT,
    ERNIE,
    XLM,
    XLNET,
    LONGFORMER,
    BIG_BIRD,
    DEBERTA,
    DEBERTA_V2,
    MODERNBERT,
    PERFORMER,
)
DECODERS = (GPT, GPT2, TRANSFO_XL, REFORMER, LSTM)
TWO_WAYS = (ELMO, ELMO_TRANSFORMER, BILSTM)
ENCODER_DECODERS = (T5, MT5, BART, MBART, MARIAN, SEQ2SEQ)
STATIC = (WORD_VECTORS,)
FAMILIES: dict[str, Family] = {
    family.name: family for family in (*STATIC, *ENCODERS, *DECODERS, *TWO_WAYS, *ENCODER_DECODERS)
}


def find_family(name: str, where: str, kind: str = "") -> Family:
    """Return the family of a `model_type`; `kind` is the class of `transformers`, which some families have variants for.

    >>> find_family("t5", "config.json", "T5EncoderModel").template.target
    ()
    """
    if name not in FAMILIES:
        raise PretuneError(f"{where}: unknown model family {name!r}; known: {', '.join(sorted(FAMILIES))}")
    return FAMILIES[name].variant(kind)
