"""Tests that texts generated on a GPU equal those on the CPU. Run with -m gpu."""

from __future__ import annotations

import pytest

import pretune as pt
from tests.support.translation_models import SENTENCES, trained

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("kind", ["rnn", "transformer"])
@pytest.mark.parametrize("beams", [1, 3])
def test_translations_on_a_gpu_equal_those_on_a_cpu(kind: str, beams: int) -> None:
    texts = SENTENCES * 20
    wanted, found = (
        [row["translation"] for row in pt.translate(trained(kind), texts, num_beams=beams, device=device)]
        for device in ("cpu", "cuda")
    )
    assert found == wanted
