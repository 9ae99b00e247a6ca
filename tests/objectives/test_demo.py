"""Tests of the table of worked examples of `pretune show objectives`."""

from __future__ import annotations

import re

import pytest

from pretune import PretuneError, show
from pretune.objectives import OBJECTIVES, task_names
from pretune.objectives.demo import SENTENCE, demonstrate, with_companion
from tests.support.cli import run_command

PARTY = "Thank you for inviting me to your party last week."


def one(expression: str, text: str = SENTENCE, seed: int = 0) -> dict[str, str]:
    (row,) = demonstrate(text, [expression], seed)
    return row


@pytest.mark.not_fast
def test_every_objective_has_an_example_and_other_data_is_noted() -> None:
    rows = {row["objective"]: row for row in demonstrate()}
    assert {with_companion(name) for name in OBJECTIVES} <= set(rows)
    for name, row in rows.items():
        assert row["input"] and row["target"], name
    noted = {name for name, row in rows.items() if "built-in" in row.get("note", "")}
    tasks = set(task_names())
    assert (
        noted == {"tlm", "trtd", "translate", "dlm", "mrm", "itm", "item", "nsp", "sop", "sso", "skip_thought"} | tasks
    )
    assert rows == {row["objective"]: row for row in demonstrate()}


@pytest.mark.not_fast
def test_examples_of_tasks_show_the_correct_answer() -> None:
    rows = {name: one(name) for name in ("classify", "regress", "choose", "match", "rank", "contrast", "entity")}
    assert rows["classify"]["target"] == one("classify(multi_label=true)")["target"] == "positive"
    assert rows["regress"]["target"] == "5"
    for name in ("choose", "entity", "rank"):
        reads, says = (rows[name][key].split(" / ") for key in ("input", "target"))
        assert len(reads) == len(says) == 2 and sorted(says) == ["0", "1"]
    assert rows["choose"]["input"].split(" / ")[1] == "[CLS] He opened the tap. [SEP] Water flowed. [SEP]"
    assert rows["contrast"]["target"] == "1 with 2, 3 with 4"
    assert rows["match"]["input"] == "[CLS] the river *bank* [SEP] a *bank* lends money [SEP]"
    assert rows["match"]["target"] == "other"


@pytest.mark.not_fast
def test_example_of_the_t5_paper() -> None:
    for seed in range(400):
        row = one("spans(noise_density=0.3,mean_span_length=1.5)", PARTY, seed)
        if row["input"] == "Thank you <X> me to your party <Y> week.":
            assert row["target"] == "<X> for inviting <Y> last <Z>"
            assert row["decoder_input"] == "[CLS] <X> for inviting <Y> last <Z>"
            return
    pytest.fail("no seed of 400 drew the paper's spans")


@pytest.mark.parametrize("seed", range(3))
def test_input_and_output_together_are_the_text(seed: int) -> None:
    text = "one two three four five six seven eight nine ten eleven twelve"
    words = text.split()
    mlm, mass = (
        "mlm(mask_rate=0.4,mask_replace_prob=1,random_replace_prob=0)",
        "mass(mask_replace_prob=1,random_replace_prob=0)",
    )
    spans, rtd = "spans(noise_density=0.4,mean_span_length=2)", "rtd(mask_rate=0.4)"
    shown = [spans, mlm, mass, rtd, "prefix", "shuffle", "denoise", "lm", "bilm"]
    rows = {row["objective"]: row for row in demonstrate(text, shown, seed)}

    found = dict(re.findall(r"(<\w+>) ([^<]*)", rows[spans]["target"]))
    assert " ".join(found.get(word, word).strip() for word in rows[spans]["input"].split()) == text
    for name in (mlm, mass):
        outputs = iter(re.split(r",? ", rows[name]["target"]))
        assert [next(outputs) if word == "[MASK]" else word for word in inside(rows[name])] == words
    assert rows[mass]["decoder_input"].split() == ["[MASK]", *rows[mass]["target"].split()[:-1]]
    both = one("trtd", text, seed)
    assert both["note"] == "built-in pairs; tokens sampled by an untrained generator"
    assert set(both["target"].split()) == {"o", "r"} and len(both["target"].split()) == len(both["input"].split())
    marks = rows[rtd]["target"].split()[1:-1]
    assert [mark == "r" for mark in marks] == [new != old for new, old in zip(inside(rows[rtd]), words, strict=True)]
    assert rows["prefix"]["input"].replace("| ", "") == text
    assert rows["prefix"]["input"].split(" | ")[1] == rows["prefix"]["target"]
    assert sorted(rows["shuffle"]["input"].split()) == sorted(words)
    assert rows["denoise"]["target"] == rows["shuffle"]["target"] == text
    assert rows["lm"] == {"objective": "lm", "input": text, "target": " ".join(words[1:])}
    assert rows["bilm"]["target"].endswith(" ".join(words[:-1]))


def inside(row: dict[str, str]) -> list[str]:
    return row["input"].removeprefix("[CLS] ").removesuffix(" [SEP]").split()


@pytest.mark.not_fast
def test_several_documents_suffice_for_objectives_that_need_them() -> None:
    text = "One. Two. Three.\n\nFour. Five. Six."
    rows = demonstrate(text, ["skip_thought", "nsp", "sop", "mlm+nsp"])
    assert not any("note" in row for row in rows)
    assert rows[0]["target"] == "One. / Three."
    assert {one("sop", text, seed)["target"] for seed in range(4)} == {"in order", "swapped"}


@pytest.mark.not_fast
def test_show_takes_a_text_and_one_objective() -> None:
    facts = show("mlm(mask_rate=0.5)", text=PARTY).describe()
    assert facts["text"] == PARTY
    assert [row["objective"] for row in facts["example"]] == ["mlm(mask_rate=0.5)"]
    printed = run_command("show", "objectives", "--text", PARTY, "--json").json()
    shown = {with_companion(row["objective"]) for row in printed["objectives"]}
    assert shown <= {row["objective"] for row in printed["example"]}


def test_invalid_input_is_rejected() -> None:
    with pytest.raises(PretuneError, match="--text is empty"):
        demonstrate("  \n ")
    with pytest.raises(PretuneError, match="--text applies only to objectives"):
        show("presets", text="words")
    with pytest.raises(PretuneError, match="unknown option"):
        show("mlm(rates=2)")
    assert "[MASK]" in one("mlm(mask_replace_prob=1,random_replace_prob=0)", "[MASK] is spelled here")["input"]
