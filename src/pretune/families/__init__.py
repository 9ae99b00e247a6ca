"""Model families, one file per published model or group; to add one, write a file with a `Family` and list it here."""

from __future__ import annotations

from pretune.families.decoders.gpt import GPT
from pretune.families.decoders.gpt2 import GPT2
from pretune.families.decoders.gpt3 import GPT3
from pretune.families.decoders.reformer import REFORMER
from pretune.families.decoders.transfo_xl import TRANSFO_XL
from pretune.families.encoder_decoders.bart import BART
from pretune.families.encoder_decoders.marian import MARIAN
from pretune.families.encoder_decoders.mbart import MBART
from pretune.families.encoder_decoders.recurrent_seq2seq import SEQ2SEQ
from pretune.families.encoder_decoders.t5 import MT5, T5
from pretune.families.encoder_decoders.transformer_pre_norm import TRANSFORMER_PRE_NORM
from pretune.families.encoders.albert import ALBERT
from pretune.families.encoders.bert import BERT
from pretune.families.encoders.big_bird import BIG_BIRD
from pretune.families.encoders.deberta import DEBERTA, DEBERTA_V2
from pretune.families.encoders.distilbert import DISTILBERT
from pretune.families.encoders.electra import ELECTRA
from pretune.families.encoders.ernie import ERNIE
from pretune.families.encoders.funnel import FUNNEL
from pretune.families.encoders.longformer import LONGFORMER
from pretune.families.encoders.modernbert import MODERNBERT
from pretune.families.encoders.mpnet import MPNET
from pretune.families.encoders.nezha import NEZHA
from pretune.families.encoders.performer import PERFORMER
from pretune.families.encoders.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA
from pretune.families.encoders.vilbert import VILBERT
from pretune.families.encoders.xlm import XLM
from pretune.families.encoders.xlnet import XLNET
from pretune.families.recurrent.bilstm import BILSTM
from pretune.families.recurrent.elmo import ELMO
from pretune.families.recurrent.elmo_transformer import ELMO_TRANSFORMER
from pretune.families.recurrent.lstm import LSTM
from pretune.families.recurrent.word_vectors import WORD_VECTORS
from pretune.families.registry import FAMILIES, find_family, known_families, register_family

__all__ = ["ENCODERS", "FAMILIES", "find_family", "known_families", "register_family"]

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
    NEZHA,
    FUNNEL,
    XLM,
    XLNET,
    LONGFORMER,
    BIG_BIRD,
    DEBERTA,
    DEBERTA_V2,
    MODERNBERT,
    PERFORMER,
    VILBERT,
)
DECODERS = (GPT, GPT2, GPT3, TRANSFO_XL, REFORMER, LSTM)
BIDIRECTIONAL = (ELMO, ELMO_TRANSFORMER, BILSTM)
ENCODER_DECODERS = (T5, MT5, BART, MBART, MARIAN, TRANSFORMER_PRE_NORM, SEQ2SEQ)
for _family in (WORD_VECTORS, *ENCODERS, *DECODERS, *BIDIRECTIONAL, *ENCODER_DECODERS):
    register_family(_family)
