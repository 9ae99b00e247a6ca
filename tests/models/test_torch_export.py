"""Export as a program of torch.export: it runs without pretune, for any batch size and length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

import pretune as pt
from pretune import PretuneError
from pretune.models import torch_export
from pretune.models.loading import load
from pretune.models.torch_export import PROGRAM, export_program
from tests.support.one_word_task import trained
from tests.support.tiny_models import random_model, small_tokenizer


def run(folder: Path, texts: list[str]) -> Any:
    """The outputs of the program in a folder for padded rows of texts, as the model card shows it."""
    inputs = AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    return torch.export.load(folder / PROGRAM).module()(ids, mask, torch.zeros_like(ids), torch.zeros_like(ids))


@pytest.mark.not_fast
def test_a_program_predicts_like_the_model(tmp_path: Path) -> None:
    facts = pt.export(trained(), format="torch", out=tmp_path / "program").facts
    assert facts["outputs"] == ["last_hidden_state", "logits"]
    assert {PROGRAM, "config.json", "tokenizer.json", "README.md"} <= set(facts["files"])
    assert "torch.export.load(" in (tmp_path / "program" / "README.md").read_text()
    texts = ["good stone water", "bad fire", "good", "tree bird cloud bad red blue green"]
    expected = [list(row["probabilities"].values()) for row in pt.predict(trained(), texts)]
    for some in (texts, texts[:1], texts[2:3]):
        logits = run(tmp_path / "program", some)[1].detach()
        ours = [expected[texts.index(text)] for text in some]
        np.testing.assert_allclose(logits.softmax(-1).numpy(), ours, atol=1e-5)
    with pytest.raises(PretuneError, match=r"exported for torch\.export; load the model that it was exported from"):
        load(tmp_path / "program")
    with pytest.raises(PretuneError, match="--dtype applies only with --format hf"):
        pt.export(trained(), format="torch", dtype="float16", out=tmp_path / "never")


@pytest.mark.end_to_end
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("modernbert", {}),
        ("gpt2", {}),
        ("longformer", {"attention_window": [4, 4]}),
        ("xlnet", {"d_inner": 32}),
    ],
)
def test_other_families_export_as_programs(family: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Outputs are compared before the program is written: ragged rows, one text, many texts."""
    model = random_model(family, small_tokenizer("byte-level-bpe"), "lm" if family == "gpt2" else "mlm", **options)
    assert PROGRAM in export_program(model, tmp_path)["files"]


@pytest.mark.not_fast
def test_a_program_with_other_outputs_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model("bert", small_tokenizer("wordpiece"), "mlm")
    outputs = torch_export.program_outputs
    monkeypatch.setattr(torch_export, "program_outputs", lambda *given: [x + 0.1 for x in outputs(*given)])
    with pytest.raises(PretuneError, match=r"bert: the last_hidden_state of the program differ from the model's"):
        export_program(model, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.not_fast
def test_models_that_cannot_be_programs_raise_an_error(tmp_path: Path) -> None:
    words = small_tokenizer("byte-level-bpe")
    with pytest.raises(PretuneError, match="encoder-decoders cannot be exported as a program"):
        export_program(random_model("bart", words, "denoise"), tmp_path)
    with pytest.raises(PretuneError, match=r"performer: this model cannot be exported as a program of torch\.export"):
        export_program(random_model("performer", words, "mlm", num_random_features=8), tmp_path)
    assert not list(tmp_path.iterdir())
