"""ERNIE against `transformers`, with and without task ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pretune.families import FAMILIES
from pretune.models.loading import load_model
from pretune.objectives import parse_objective
from tests.support.family_configs import ERNIE, ERNIE_TASK_IDS
from tests.support.parity import (
    Ragged,
    assert_same,
    close,
    compare_classifier,
    compare_export,
    compare_mlm,
    save_reference,
)

FAMILY = FAMILIES["ernie"]


def make_batch(tasks: bool) -> Ragged:
    columns = {"segment": ("token_type_ids", 2)} | ({"task": ("task_type_ids", 4)} if tasks else {})
    return Ragged.make(60, columns=columns)


def make_reference(kind: str, folder: Path, tasks: bool) -> Any:
    import transformers

    config = transformers.ErnieConfig(**(ERNIE | (ERNIE_TASK_IDS if tasks else {})))
    return save_reference(getattr(transformers, f"ErnieFor{kind}"), config, folder)


@pytest.mark.parametrize("tasks", [False, True])
def test_hidden_states_logits_loss_and_gradients_match_transformers(tasks: bool, tmp_path: Path) -> None:
    compare_mlm(make_reference("MaskedLM", tmp_path, tasks), tmp_path, make_batch(tasks))


def test_the_default_task_id_is_zero(tmp_path: Path) -> None:
    reference = make_reference("MaskedLM", tmp_path, tasks=True)
    model, batch = load_model(tmp_path), make_batch(tasks=False)
    with torch.no_grad():
        close(model.backbone(batch.packed).last, batch.flat(reference.ernie(**batch.inputs).last_hidden_state))


@pytest.mark.parametrize("tasks", [False, True])
def test_export_loads_in_transformers_and_a_second_export_is_identical(tasks: bool, tmp_path: Path) -> None:
    from transformers import AutoModelForMaskedLM

    reference = make_reference("MaskedLM", tmp_path / "reference", tasks)
    compare_export(reference, tmp_path / "reference", tmp_path, make_batch(tasks), AutoModelForMaskedLM)


def test_pretraining_heads_round_trip_through_transformers(tmp_path: Path) -> None:
    from transformers import AutoModelForPreTraining

    reference = make_reference("PreTraining", tmp_path / "reference", tasks=False)
    model = load_model(tmp_path / "reference", parse_objective("mlm+nsp"))
    model.save(tmp_path / "out")
    again, report = AutoModelForPreTraining.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    batch = make_batch(tasks=False)
    theirs = reference(**batch.inputs)
    close(again.eval()(**batch.inputs).seq_relationship_logits, theirs.seq_relationship_logits, 1e-6)
    pairs = model.root.heads["nsp"](model.backbone(batch.packed).last[batch.starts])
    close(pairs, theirs.seq_relationship_logits)


def test_classifier_round_trips_through_transformers(tmp_path: Path) -> None:
    compare_classifier(FAMILY, ERNIE | ERNIE_TASK_IDS, tmp_path, make_batch(tasks=True))


def test_a_model_without_heads_loads(tmp_path: Path) -> None:
    make_reference("PreTraining", tmp_path / "reference", tasks=True).ernie.save_pretrained(tmp_path / "bare")
    assert_same(load_model(tmp_path / "reference").root, load_model(tmp_path / "bare").root)
