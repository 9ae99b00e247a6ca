"""Model families, one file per published model or group; to add one, write a file with a `Family` and list it here.

A family is imported when it is first used.
"""

from __future__ import annotations

from pretune.families.registry import FAMILIES, find_family, known_families, register_family

__all__ = ["FAMILIES", "find_family", "known_families", "register_family"]

# `model_type` in config.json → the module of the family, and its name there
BUILT_IN = {
    "word-vectors": "recurrent.word_vectors:WORD_VECTORS",
    # encoders
    "bert": "encoders.bert:BERT",
    "roberta": "encoders.roberta:ROBERTA",
    "xlm-roberta": "encoders.roberta:XLM_ROBERTA",
    "camembert": "encoders.roberta:CAMEMBERT",
    "mpnet": "encoders.mpnet:MPNET",
    "distilbert": "encoders.distilbert:DISTILBERT",
    "electra": "encoders.electra:ELECTRA",
    "albert": "encoders.albert:ALBERT",
    "ernie": "encoders.ernie:ERNIE",
    "nezha": "encoders.nezha:NEZHA",
    "funnel": "encoders.funnel:FUNNEL",
    "xlm": "encoders.xlm:XLM",
    "xlnet": "encoders.xlnet:XLNET",
    "longformer": "encoders.longformer:LONGFORMER",
    "big_bird": "encoders.big_bird:BIG_BIRD",
    "deberta": "encoders.deberta:DEBERTA",
    "deberta-v2": "encoders.deberta:DEBERTA_V2",
    "modernbert": "encoders.modernbert:MODERNBERT",
    "performer": "encoders.performer:PERFORMER",
    "vilbert": "encoders.vilbert:VILBERT",
    # decoders
    "openai-gpt": "decoders.gpt:GPT",
    "gpt2": "decoders.gpt2:GPT2",
    "gpt3": "decoders.gpt3:GPT3",
    "transfo-xl": "decoders.transfo_xl:TRANSFO_XL",
    "reformer": "decoders.reformer:REFORMER",
    "lstm": "recurrent.lstm:LSTM",
    # models of both directions
    "elmo": "recurrent.elmo:ELMO",
    "elmo-transformer": "recurrent.elmo_transformer:ELMO_TRANSFORMER",
    "bilstm": "recurrent.bilstm:BILSTM",
    # encoder-decoders
    "t5": "encoder_decoders.t5:T5",
    "mt5": "encoder_decoders.t5:MT5",
    "bart": "encoder_decoders.bart:BART",
    "mbart": "encoder_decoders.mbart:MBART",
    "marian": "encoder_decoders.marian:MARIAN",
    "transformer-pre-norm": "encoder_decoders.transformer_pre_norm:TRANSFORMER_PRE_NORM",
    "seq2seq": "encoder_decoders.recurrent_seq2seq:SEQ2SEQ",
}
for _name, _place in BUILT_IN.items():
    FAMILIES.declare(_name, f"{__name__}.{_place}")
