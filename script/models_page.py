"""Update the tables of docs/reference/models.md from the families and the presets.

Usage: script/models_page.py

Rows of families or presets that no longer exist are dropped.
"""

from __future__ import annotations

import re
from pathlib import Path

from pretune.families import FAMILIES
from pretune.verbs.show import show

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "models.md"

# Family → its publications, and the tests that compare it with `transformers`.
ABOUT = {
    "word-vectors": ("word2vec, Mikolov et al., 2013; GloVe, Pennington et al., 2014; fastText, Bojanowski et al., 2017", ""),
    "bert": ("BERT, Devlin et al., 2019; SpanBERT, Joshi et al., 2020", "test_bert.py test_presets.py"),
    "roberta": ("RoBERTa, Liu et al., 2019", "test_roberta.py test_presets.py"),
    "xlm-roberta": ("XLM-R, Conneau et al., 2020", "test_roberta.py test_presets.py"),
    "camembert": ("CamemBERT, Martin et al., 2020", "test_roberta.py test_presets.py"),
    "mpnet": ("MPNet, Song et al., 2020", "test_mpnet.py test_presets.py"),
    "distilbert": ("DistilBERT, Sanh et al., 2019", "test_distilbert.py test_presets.py"),
    "electra": ("ELECTRA, Clark et al., 2020", "test_electra.py test_presets.py"),
    "albert": ("ALBERT, Lan et al., 2020", "test_albert.py test_presets.py"),
    "ernie": ("ERNIE 1.0, Sun et al., 2019", "test_ernie.py test_presets.py"),
    "nezha": ("NEZHA, Wei et al., 2019", ""),
    "funnel": ("Funnel-Transformer, Dai et al., 2020; its encoder alone, for classification", "test_funnel.py"),
    "xlm": ("XLM, Conneau and Lample, 2019", "test_xlm.py test_presets.py test_task_heads.py"),
    "xlnet": ("XLNet, Yang et al., 2019", "test_xlnet.py test_presets.py test_task_heads.py"),
    "longformer": ("Longformer, Beltagy et al., 2020", "test_longformer.py test_presets.py test_task_heads.py"),
    "big_bird": ("BigBird, Zaheer et al., 2020", "test_big_bird.py test_presets.py test_task_heads.py"),
    "deberta": ("DeBERTa, He et al., 2021", "test_deberta.py test_presets.py"),
    "deberta-v2": ("DeBERTa-v2 and v3, He et al., 2021", "test_deberta.py test_presets.py"),
    "modernbert": ("ModernBERT, Warner et al., 2024", "test_modernbert.py"),
    "performer": ("Performer, Choromanski et al., 2020, with the architecture of BERT", ""),
    "vilbert": ("ViLBERT, Lu et al., 2019: texts and regions of images", ""),
    "openai-gpt": ("GPT, Radford et al., 2018", "test_gpt.py test_task_heads.py"),
    "gpt2": ("GPT-2, Radford et al., 2019", "test_gpt.py test_task_heads.py"),
    "gpt3": ("GPT-3, Brown et al., 2020: GPT-2 with alternating dense and locally banded attention", "test_gpt3.py"),
    "transfo-xl": ("Transformer-XL, Dai et al., 2019", "test_transfo_xl.py"),
    "reformer": ("Reformer, Kitaev et al., 2020", "test_reformer.py"),
    "lstm": ("AWD-LSTM, Merity et al., 2018; ULMFiT, Howard and Ruder, 2018; semi-supervised sequence learning, Dai and Le, 2015", ""),
    "elmo": ("ELMo, Peters et al., 2018", ""),
    "bilstm": ("a BiLSTM for distillation, Tang et al., 2019", ""),
    "elmo-transformer": ("ELMo's biLM of Transformer layers, Peters et al., 2018", ""),
    "t5": ("T5 and T5 1.1, Raffel et al., 2020; its encoder alone, as in Sentence-T5, Ni et al., 2022", "test_t5.py test_t5_encoder.py test_encoder_decoder_presets.py test_task_heads.py"),
    "mt5": ("mT5, Xue et al., 2021", "test_t5.py test_t5_encoder.py test_encoder_decoder_presets.py test_task_heads.py"),
    "bart": ("BART, Lewis et al., 2020", "test_bart.py test_encoder_decoder_presets.py test_task_heads.py"),
    "mbart": ("mBART, Liu et al., 2020", "test_bart.py test_encoder_decoder_presets.py test_task_heads.py"),
    "seq2seq": ("sequence to sequence, Sutskever et al., 2014; attention, Bahdanau et al., 2015, Luong et al., 2015; Skip-Thought, Kiros et al., 2015; CoVe, McCann et al., 2017", ""),
    "marian": ("the Transformer, Vaswani et al., 2017, and MASS, Song et al., 2019, in the format of Marian", "test_bart.py test_encoder_decoder_presets.py"),
    "transformer-pre-norm": ("the Transformer with pre-norm layers, Wang et al., 2019", "test_transformer_pre_norm.py"),
}  # fmt: skip
PARITY_NOTES = {
    "big_bird": "yes, for each text alone, with the same random blocks (below)",
    "funnel": "yes, for each text alone: in its batches, `transformers` pools padding together with tokens",
    "reformer": "yes, for each text alone, with the same hashing (below)",
    "transfo-xl": "no: removed in `transformers` 5; compared with recorded outputs of its last version",
    "nezha": "no: removed in `transformers` 5; hidden states are compared with the equations of the paper and, without positions, with BERT in tests/families/encoders/test_nezha.py",
    "transformer-pre-norm": "no: not in `transformers`; hidden states and logits are compared with those of mBART with the same weights and positions",
    "gpt3": "no: not in `transformers`; hidden states and logits are compared with those of GPT-Neo with the same weights",
    "word-vectors": "no: there is nothing to compute; file formats are tested in tests/text/corpus/test_word_vector_files.py",
    "lstm": "no: not in `transformers`; its layers are compared with torch in tests/nn/test_recurrent.py, its properties are tested in tests/families/recurrent/test_recurrent_families.py",
    "bilstm": "no: not in `transformers`; its layers are those of lstm, its properties are tested in tests/families/recurrent/test_recurrent_families.py",
    "elmo": "no: not in `transformers`; the released format is tested in tests/families/recurrent/test_elmo_checkpoint.py",
    "seq2seq": "no: not in `transformers`; its properties are tested in tests/backbones/test_recurrent_encoder_decoder.py",
    "vilbert": "no: not in `transformers`; hidden states and logits are compared with the computation of the released code in tests/families/encoders/test_vilbert.py",
    "elmo-transformer": "no: not in `transformers`; its properties are tested in tests/objectives/pretraining/test_bilm.py",
    "performer": "no: not in `transformers`; its properties are tested in tests/families/encoders/test_performer.py and tests/nn/attention/test_performer.py",
}
# Families that are not in `transformers`, but have a published format.
NOT_EXPORTED = {"vilbert": "none: a run folder has the parameter names of the released code"}
# The rounded numbers in papers and model cards.
PUBLISHED = {
    "bert-tiny": "4.4M", "bert-mini": "11.3M", "bert-small": "29.1M", "bert-base": "110M", "bert-large": "340M",
    "bert-base-cased": "110M", "bert-large-cased": "340M",
    "roberta-base": "125M", "roberta-large": "355M", "xlm-roberta-base": "270M", "xlm-roberta-large": "550M",
    "camembert-base": "110M", "camembert-large": "335M", "mpnet-base": "110M",
    "distilbert-base": "66M", "electra-small": "14M", "electra-base": "110M", "electra-large": "335M",
    "albert-base-v1": "12M", "albert-large-v1": "18M", "albert-xlarge-v1": "60M", "albert-xxlarge-v1": "235M",
    "albert-base-v2": "12M", "albert-large-v2": "18M", "albert-xlarge-v2": "60M", "albert-xxlarge-v2": "235M",
    "xlm-mlm-100-1280": "570M", "xlm-mlm-tlm-xnli15-1024": "250M",
    "xlnet-base-cased": "110M", "xlnet-large-cased": "340M", "transfo-xl-wt103": "257M",
    "deberta-base": "100M", "deberta-large": "350M", "deberta-xlarge": "700M",
    "deberta-v2-xlarge": "900M", "deberta-v2-xxlarge": "1.5B", "mdeberta-v3-base": "86M",
    "deberta-v3-xsmall": "22M", "deberta-v3-small": "44M", "deberta-v3-base": "86M", "deberta-v3-large": "304M",
    "modernbert-base": "149M", "modernbert-large": "395M",
    "gpt": "117M", "gpt2-small": "117M", "gpt2-medium": "345M", "gpt2-large": "762M", "gpt2-xl": "1542M",
    "gpt3-125m": "125M", "gpt3-350m": "350M", "gpt3-760m": "760M", "gpt3-1.3b": "1.3B", "gpt3-2.7b": "2.7B",
    "gpt3-6.7b": "6.7B", "gpt3-13b": "13B", "gpt3-175b": "175B",
    "t5-small": "60M", "t5-base": "220M", "t5-large": "770M", "t5-3b": "2.8B", "t5-11b": "11B",
    "mt5-small": "300M", "mt5-base": "580M", "mt5-large": "1.2B", "mt5-xl": "3.7B", "mt5-xxl": "13B",
    "bart-base": "140M", "bart-large": "400M", "mbart-large-cc25": "680M",
    "awd-lstm-ptb": "24M", "awd-lstm-wt2": "33M", "elmo-original": "93.6M", "elmo-medium": "28.0M", "elmo-small": "13.6M",
    "seq2seq-2014": "384M (with its softmax)",
    "transformer-base": "65M", "transformer-big": "213M",
}  # fmt: skip
HEADS = {
    "mlm": "fill-mask", "nsp": "next sentence", "sop": "sentence order", "rtd": "replaced tokens", "lm": "generation",
    "plm": "permuted prediction", "mrm": "masked regions", "itm": "image-text matching", "vqa": "answers about images", "classify": "classification", "choose": "multiple choice",
    "tag": "tags", "answer": "answers",
    "spans": "generation", "denoise": "generation", "mass": "generation", "shuffle": "generation", "translate": "generation",
}  # fmt: skip


def families() -> dict[str, str]:
    """Return a row for each family."""
    rows = {}
    for name, family in FAMILIES.items():
        source, _ = ABOUT[name]
        classes = [names for one in (family, *family.variants) for names in one.classes]
        heads = list(dict.fromkeys(HEADS[head] for names in classes for head in sorted(names)))
        bare = ["bare", *(["bare encoder"] if family.variants else [])]
        listed = (
            ", ".join([*bare, *heads])
            if family.in_transformers
            else NOT_EXPORTED.get(name, "none: the format is specific to pretune")
        )
        parity = PARITY_NOTES.get(name, "yes").partition(":")[0]
        rows[name] = f"| `{name}` | {source} | {listed} | {parity} |"
    return rows


def tests() -> dict[str, str]:
    """Return a row for each family with the tests of its parity, or of what it has instead."""
    rows = {}
    for name, (_, files) in ABOUT.items():
        found = (next((ROOT / "tests").rglob(file)) for file in files.split())
        paths = " ".join(f"`{file.relative_to(ROOT)}`" for file in found)
        note = PARITY_NOTES.get(name, "").partition(": ")[2]
        rows[name] = f"| `{name}` | {'; '.join(filter(None, (note, paths)))} |"
    return rows


def sizes() -> dict[str, str]:
    """Return a row for each preset, sorted by family, without tiny presets."""
    rows = {}
    order = list(FAMILIES)
    presets = show("presets").facts["presets"]
    for preset in sorted(presets, key=lambda row: (order.index(row["family"]), row["parameters"], row["preset"])):
        name, published = preset["preset"], PUBLISHED.get(preset["preset"], "–")
        if published != "–" or not name.endswith(("-tiny", "-mini")):
            rows[name] = (
                f"| `{name}` | `{preset['family']}` | {preset['shape']} | {preset['parameters']:,} | {published} |"
            )
    return rows


def main() -> None:
    """Replace the rows of the tables."""
    page = PAGE.read_text(encoding="utf-8")
    for name, rows in (("families", families()), ("sizes", sizes()), ("tests", tests())):
        pattern = rf"(<!-- {name} -->\n\n\|.*\n\|.*\n)(?:\|.*\n)*"
        page = re.sub(pattern, lambda match, rows=rows: match[1] + "\n".join(rows.values()) + "\n", page)  # type: ignore[misc]
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
