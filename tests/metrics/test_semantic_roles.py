"""Tests of the F1 of semantic roles, on cases that the scorer of CoNLL-2005 distinguishes."""

from __future__ import annotations

import pytest

from pretune.metrics.semantic_roles import arguments, role_metrics

GOLD = ["B-A0", "I-A0", "B-V", "B-A1", "O"]


@pytest.mark.parametrize(
    ("predicted", "both", "guessed"),
    [
        (GOLD, 2, 2),
        (["B-A0", "I-A0", "O", "B-A1", "O"], 2, 2),  # the predicate is not counted
        (["B-A0", "O", "B-V", "B-A1", "O"], 1, 2),  # an argument with other words is wrong
        (["B-A1", "I-A1", "B-V", "B-A1", "O"], 1, 2),  # an argument with another role is wrong
        (["B-A0", "I-A0", "B-V", "B-A1", "B-AM-TMP"], 2, 3),
        (["O"] * 5, 0, 0),
    ],
)
def test_arguments_are_right_with_their_role_and_all_words(predicted: list[str], both: int, guessed: int) -> None:
    found = role_metrics([GOLD], [predicted]).compute()
    assert found["precision"] == both / max(1, guessed) and found["recall"] == both / 2
    assert found["role_f1"] == pytest.approx(2 * both / (2 + guessed))


def test_an_argument_in_two_parts_is_one_argument() -> None:
    gold = ["B-A1", "B-V", "B-C-A1", "I-C-A1"]
    assert role_metrics([gold], [gold]).compute() == {"role_f1": 1.0, "precision": 1.0, "recall": 1.0}
    assert role_metrics([gold], [["B-A1", "B-V", "O", "O"]]).compute()["role_f1"] == 0.0
    assert role_metrics([gold], [["B-A1", "B-V", "B-C-A1", "O"]]).compute()["role_f1"] == 0.0


def test_a_part_without_a_beginning_is_an_argument_of_its_own() -> None:
    assert arguments(["B-C-A1", "B-V"]) == {("A1", ((0, 0),))}
    assert arguments(["B-V", "O", "B-C-V"]) == set(), "parts of the predicate are not counted either"


def test_a_reference_is_another_role() -> None:
    assert {role for role, _ in arguments(["B-A1", "B-R-A1", "B-V"])} == {"A1", "R-A1"}


def test_sums_are_over_all_predicates() -> None:
    assert role_metrics([GOLD, ["B-V", "B-A1"]], [GOLD, ["B-V", "O"]]).compute()["recall"] == pytest.approx(2 / 3)
