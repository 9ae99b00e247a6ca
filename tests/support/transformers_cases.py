"""Tiny models of every family in `transformers`, with their logits there and in pretune."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pretune.families import FAMILIES
from pretune.models.loading import load
from tests.support.family_configs import (
    ALBERT,
    BART,
    BERT,
    BIG_BIRD,
    BIG_BIRD_FULL_ATTENTION,
    DEBERTAS,
    DISTILBERT,
    ELECTRA,
    ERNIE,
    ERNIE_TASK_IDS,
    FUNNEL,
    GPT,
    LONGFORMER,
    MODERNBERT,
    MODERNBERT_IDS,
    MPNET,
    ROBERTA,
    T5,
    XLM,
    XLNET,
)
from tests.support.parity import Ragged

LOWEST = 12  # the smallest id in a batch: no token is a special one
MARIAN = BART | {"decoder_vocab_size": 60}
REFORMER = {
    "vocab_size": 60, "hidden_size": 32, "num_attention_heads": 2, "attention_head_size": 12, "feed_forward_size": 40,
    "attn_layers": ["local", "local"], "local_attn_chunk_length": 4, "axial_pos_shape": [4, 12], "hash_seed": 3,
    "axial_pos_embds_dim": [12, 20], "max_position_embeddings": 48, "is_decoder": True,
}  # fmt: skip
GPT_WITH_IDS = GPT | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
# Family → configuration of its tiny models, language model class in `transformers`, objective in pretune.
TINY: dict[str, tuple[dict[str, Any], str, str]] = {
    "bert": (BERT, "BertForMaskedLM", "mlm"),
    "roberta": (ROBERTA, "RobertaForMaskedLM", "mlm"),
    "xlm-roberta": (ROBERTA, "XLMRobertaForMaskedLM", "mlm"),
    "camembert": (ROBERTA, "CamembertForMaskedLM", "mlm"),
    "mpnet": (MPNET, "MPNetForMaskedLM", "mlm"),
    "distilbert": (DISTILBERT, "DistilBertForMaskedLM", "mlm"),
    "electra": (ELECTRA, "ElectraForMaskedLM", "mlm"),
    "albert": (ALBERT, "AlbertForMaskedLM", "mlm"),
    "ernie": (ERNIE | ERNIE_TASK_IDS, "ErnieForMaskedLM", "mlm"),
    "xlm": (XLM, "XLMWithLMHeadModel", "mlm"),
    "xlnet": (XLNET, "XLNetLMHeadModel", "plm"),
    "funnel": (FUNNEL, "FunnelForMaskedLM", "mlm"),
    "longformer": (LONGFORMER, "LongformerForMaskedLM", "mlm"),
    "big_bird": (BIG_BIRD | BIG_BIRD_FULL_ATTENTION, "BigBirdForMaskedLM", "mlm"),
    "deberta": (DEBERTAS["deberta"], "DebertaForMaskedLM", "mlm"),
    "deberta-v2": (DEBERTAS["deberta-v2"], "DebertaV2ForMaskedLM", "mlm"),
    "modernbert": (MODERNBERT | MODERNBERT_IDS, "ModernBertForMaskedLM", "mlm"),
    "openai-gpt": (GPT_WITH_IDS, "OpenAIGPTLMHeadModel", "lm"),
    "gpt2": (GPT_WITH_IDS, "GPT2LMHeadModel", "lm"),
    "reformer": (REFORMER, "ReformerModelWithLMHead", "lm"),
    "t5": (T5, "T5ForConditionalGeneration", "spans"),
    "mt5": (T5, "MT5ForConditionalGeneration", "spans"),
    "bart": (BART, "BartForConditionalGeneration", "spans"),
    "mbart": (BART, "MBartForConditionalGeneration", "spans"),
    "marian": (MARIAN, "MarianMTModel", "spans"),
}


def quick(names: Iterable[str], few: Collection[str] = ("bert", "albert", "gpt2", "t5", "bart")) -> list[Any]:
    """Return families as test parameters, all but a few marked as slow."""
    return [name if name in few else pytest.param(name, marks=pytest.mark.slow) for name in names]


@dataclass(frozen=True)
class Case:
    """A class of `transformers`, and its family and head in pretune."""

    family: str
    kind: str
    head: str

    @property
    def tiny(self) -> dict[str, Any]:
        return dict(TINY[self.family][0])

    @property
    def seq2seq(self) -> bool:
        return bool(FAMILIES[self.family].template.target)

    def reference(self, folder: Path, changes: dict[str, Any]) -> Any:
        """Save a `transformers` model with random parameters, norms and biases included, so that no agreement is accidental."""
        import transformers

        config = transformers.AutoConfig.for_model(self.family, **(self.tiny | changes))
        reference = getattr(transformers, self.kind)(config).eval()
        torch.manual_seed(0)
        for parameter in reference.parameters():
            if parameter.requires_grad:
                torch.nn.init.normal_(parameter, std=0.2)
        if self.family == "reformer":  # `transformers` stores the bias of its head, but does not add it
            torch.nn.init.zeros_(reference.lm_head.bias)
        reference.save_pretrained(folder)
        return reference

    def batches(self, config: Any) -> list[Ragged]:
        """Return the input of the model and, for an encoder-decoder, of its decoder."""
        padding = config.pad_token_id or 0
        segments = getattr(config, "type_vocab_size", 2 if self.family in ("xlnet", "funnel") else 0)
        columns = {"segment": ("token_type_ids", 2)} if segments > 1 else {}
        # In `transformers`, the chunks of one and the pooled tokens of the other would see padding.
        lengths = (12, 12) if self.family in ("reformer", "funnel") else (7, 12, 1, 5)
        first = Ragged.make(60, lengths, 0, LOWEST, padding, columns, left=self.family == "xlnet")
        return [first, Ragged.make(60, (3, 6, 9, 1), 1, LOWEST, padding, {})] if self.seq2seq else [first]

    def theirs(self, reference: Any) -> Tensor:
        """Return the logits of `transformers`."""
        batches = self.batches(reference.config)
        inputs = batches[0].inputs
        if self.seq2seq:
            inputs |= {f"decoder_{key}": value for key, value in batches[1].inputs.items()}
        with torch.no_grad():
            if self.head == "choose" and self.kind.endswith("DoubleHeadsModel"):
                last = batches[0].attention_mask.sum(1) - 1
                return reference(batches[0].input_ids[None], mc_token_ids=last[None]).mc_logits[0][:, None]  # type: ignore[no-any-return]
            if self.head == "choose":  # the sequences are the choices of one example
                return reference(**{key: value[None] for key, value in inputs.items()}).logits[0][:, None]  # type: ignore[no-any-return]
            if self.head == "answer":
                # An empty question, since BigBird masks its tokens.
                options = {"question_lengths": torch.zeros(4, 1)} if self.family == "big_bird" else {}
                out = reference(**inputs, **options)
                return batches[-1].flat(torch.stack([out.start_logits, out.end_logits], -1))
            logits = reference(**inputs).logits
        return logits if self.head == "classify" else batches[-1].flat(logits)

    def ours(self, folder: Path, config: Any) -> Tensor:
        """Return the logits of pretune for the model in a folder."""
        model = load(folder)
        model.root.eval().requires_grad_(False)
        packed = [batch.packed for batch in self.batches(config)]
        states, head = model.backbone(*packed).last, model.root.heads[self.head]
        if self.head in ("classify", "choose"):
            out = head(states, packed[-1])
        elif self.head in ("tag", "answer"):
            out = head(states)
        else:
            out = head(states, model.backbone.embed.tokens)
        assert not model.untrained and not model.skipped_head_tensors
        return out  # type: ignore[no-any-return]


CASES = {name: Case(name, kind, head) for name, (_, kind, head) in TINY.items()}


def edit_config(folder: Path, **keys: Any) -> None:
    """Replace, add or, with None, remove keys of config.json."""
    file = folder / "config.json"
    content = json.loads(file.read_text()) | keys
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
