"""Families by name: one file a published model, or several that share a wiring."""

from __future__ import annotations

from pretune.families.decoders.gpt import GPT
from pretune.families.decoders.gpt2 import GPT2
from pretune.families.decoders.reformer import REFORMER
from pretune.families.decoders.transfo_xl import TRANSFO_XL
from pretune.families.encoder_decoders.bart import BART
from pretune.families.encoder_decoders.marian import MARIAN
from pretune.families.encoder_decoders.mbart import MBART
from pretune.families.encoder_decoders.recurrent_seq2seq import SEQ2SEQ
from pretune.families.encoder_decoders.t5 import MT5, T5
from pretune.families.encoders.albert import ALBERT
from pretune.families.encoders.bert import BERT
from pretune.families.encoders.big_bird import BIG_BIRD
from pretune.families.encoders.deberta import DEBERTA, DEBERTA_V2
from pretune.families.encoders.distilbert import DISTILBERT
from pretune.families.encoders.electra import ELECTRA
from pretune.families.encoders.ernie import ERNIE
from pretune.families.encoders.longformer import LONGFORMER
from pretune.families.encoders.modernbert import MODERNBERT
from pretune.families.encoders.mpnet import MPNET
from pretune.families.encoders.performer import PERFORMER
from pretune.families.encoders.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA
from pretune.families.encoders.xlm import XLM
from pretune.families.encoders.xlnet import XLNET
from pretune.families.family import Family
from pretune.families.recurrent.bilstm import BILSTM
from pretune.families.recurrent.elmo import ELMO
from pretune.families.recurrent.elmo_transformer import ELMO_TRANSFORMER
from pretune.families.recurrent.lstm import LSTM
from pretune.families.recurrent.word_vectors import WORD_VECTORS
from pretune.runtime.errors import PretuneError

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
