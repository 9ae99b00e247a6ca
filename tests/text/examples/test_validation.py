from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pretune as pt
from pretune import PretuneError
from pretune.training.jobs.finetuning import read_task_data, resolve_finetuning

TEXTS = [f"text number {number}" for number in range(60)]
BOTH = ["yes", "no"] * 30


def write(file: Path, texts: list[str], labels: list[Any]) -> Path:
    file.write_text(
        "text,label\n" + "".join(f"{a},{b}\n" for a, b in zip(texts, labels, strict=True)), encoding="utf-8"
    )
    return file


def read_data(file: Path, objective: str = "classify", **options: Any) -> Any:
    given = {
        "train": str(file), "dev": None, "out": file.parent / "run", "columns": {}, "objective": objective,
        "strategy": "full", "epochs": 1, "budget": None, "deterministic": False, "seed": 0, "num_seeds": 1,
        "tokenizer": None, "from_scratch": False, "device": None,
    }  # fmt: skip
    return read_task_data(resolve_finetuning("bert-tiny", given | options))


@pytest.mark.parametrize(
    ("labels", "advice"),
    [
        (
            [f"{number / 7:.4f}" for number in range(60)],
            "every label in 'label' is a different number, so the labels cannot be classes; to predict numbers, use --objective regress; choose another",
        ),
        ([f"id{number}" for number in range(60)], "too many for classes; choose another column with --label"),
        ([f"id{number}" for number in range(57)] + ["a", "a", "a"], "60 rows have 58 distinct labels in 'label'"),
    ],
)
def test_distinct_labels_raise_an_error_before_training(labels: list[str], advice: str, tmp_path: Path) -> None:
    file = write(tmp_path / "train.csv", TEXTS, labels)
    with pytest.raises(PretuneError, match=rf"train\.csv: .*{advice}"):
        pt.finetune("pretune-small-en", file, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_regression_accepts_distinct_numbers(tmp_path: Path) -> None:
    file = write(tmp_path / "train.csv", TEXTS, [number / 7 for number in range(60)])
    made = read_data(file, "regress")
    assert len(made.rows) + len(made.dev) == 60


def test_few_shot_training_accepts_one_row_per_class(tmp_path: Path) -> None:
    file = write(tmp_path / "train.csv", TEXTS[:12], [f"class{number}" for number in range(12)])
    assert len(read_data(file, shots=1).rows) == 12
    few = write(tmp_path / "few.csv", TEXTS[:3], ["a", "b", "c"])
    assert read_data(few).task.labels == ("a", "b", "c")


def test_all_rows_are_for_training_if_none_can_be_held_out(tmp_path: Path) -> None:
    """Half of the rows have the same text, the others one class each: no class has two texts."""
    labels = ["same"] * 30 + [f"class{number}" for number in range(30)]
    made = read_data(write(tmp_path / "train.csv", ["one text"] * 30 + TEXTS[:30], labels))
    assert len(made.rows) == 60 and made.dev is None and not made.dev_rows


def test_suspicious_labels_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRETUNE_PROGRESS", raising=False)
    read_data(write(tmp_path / "a.csv", TEXTS, [number % 15 for number in range(60)]))
    assert "the 15 classes in 'label' are all numbers" in capsys.readouterr().err
    read_data(write(tmp_path / "b.csv", TEXTS, ["NaN"] * 6 + BOTH[6:]))
    assert "6 of 60 labels are 'NaN' (line 2, line 3, line 4 …), which is treated as a class" in capsys.readouterr().err
    read_data(write(tmp_path / "c.csv", TEXTS, ["lone", *BOTH[1:]]))
    assert "1 of 3 classes has a single row ('lone')" in capsys.readouterr().err
    read_data(write(tmp_path / "d.csv", TEXTS, BOTH))
    assert "class" not in capsys.readouterr().err


@pytest.mark.parametrize("objective", ["classify", "regress", "classify on mix"])
def test_unlabeled_rows_are_listed_or_dropped(objective: str, tmp_path: Path) -> None:
    labels = [1, 2, 3] * 20 if objective == "regress" else BOTH
    file = write(tmp_path / "train.csv", TEXTS, ["", " ", *labels[2:]])
    with pytest.raises(
        PretuneError, match=r"2 of 60 rows have no label in 'label': line 2, line 3; correct .* --drop-invalid"
    ):
        read_data(file, objective)
    made = read_data(file, objective, drop_invalid=True)
    assert len(made.rows) + len(made.dev) == 58 and "" not in getattr(made.task, "labels", ())


def test_nan_is_a_missing_label(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow.parquet import write_table

    numbers = [None, float("nan"), *([1.0, 2.0] * 29)]
    write_table(pyarrow.table({"text": TEXTS, "label": numbers}), tmp_path / "train.parquet")
    for objective in ("classify", "regress"):
        with pytest.raises(PretuneError, match="2 of 60 rows have no label in 'label': line 1, line 2"):
            read_data(tmp_path / "train.parquet", objective)
    file = write(tmp_path / "train.csv", TEXTS, ["nan", "N/A", *([1, 2] * 29)])
    with pytest.raises(PretuneError, match="2 of 60 rows have no label in 'label': line 2, line 3"):
        read_data(file, "regress")


def test_a_few_distinct_fractions_are_not_classes(tmp_path: Path) -> None:
    few = write(tmp_path / "few.csv", TEXTS[:4], ["0.5", "1.25", "3", "4.75"])
    with pytest.raises(
        PretuneError, match=r"every label in 'label' is a different number, so .*; to predict .* regress"
    ):
        read_data(few)
    assert read_data(write(tmp_path / "few.csv", TEXTS[:4], [0, 1, 2, 3])).task.labels == ("0", "1", "2", "3")


def test_empty_texts_are_errors_or_dropped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRETUNE_PROGRESS", raising=False)
    file = write(tmp_path / "train.csv", ["", "  ", *TEXTS[2:]], BOTH)
    with pytest.raises(
        PretuneError,
        match=r"2 of 60 rows have no text in 'text': line 2, line 3; correct them, or leave them out with --drop-invalid$",
    ):
        read_data(file)
    made = read_data(file, drop_invalid=True)
    assert len(made.rows) + len(made.dev) == 58
    assert "2 of 60 rows have no text: line 2, line 3; these rows are left out" in capsys.readouterr().err
    file = write(tmp_path / "most.csv", [""] * 31 + TEXTS[31:], BOTH)
    with pytest.raises(PretuneError, match=r"31 of 60 rows have no text .* choose another column with --text"):
        read_data(file)
    with pytest.raises(PretuneError, match="no row is left; add rows with a text and a label"):
        read_data(write(tmp_path / "all.csv", [""] * 60, BOTH), drop_invalid=True)


def test_spelled_missing_values_are_reported_or_dropped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRETUNE_PROGRESS", raising=False)
    file = write(tmp_path / "train.csv", ["nan", *TEXTS[1:]], ["yes", "None", "no", *BOTH[3:]])
    made = read_data(file)
    assert len(made.rows) + len(made.dev) == 60 and made.task.labels == ("None", "no", "yes")
    said = capsys.readouterr().err
    assert "1 of 60 texts in 'text' are words for a missing value, such as 'nan' (line 2); these rows are kept" in said
    assert "1 of 60 labels are 'None' (line 3), which is treated as a class; if it stands for a missing label" in said
    made = read_data(file, drop_invalid=True)
    assert len(made.rows) + len(made.dev) == 58 and made.task.labels == ("no", "yes")
    said = capsys.readouterr().err
    assert "1 of 60 rows have a text such as NaN or None, which stands for a missing one: line 2; these" in said
    assert "1 of 60 rows have a label that stands for a missing one, 'None': line 3; these rows are left out" in said


def test_a_frequent_class_named_none_is_a_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PRETUNE_PROGRESS", raising=False)
    made = read_data(write(tmp_path / "train.csv", TEXTS, ["None", "yes", "no"] * 20), drop_invalid=True)
    assert made.task.labels == ("None", "no", "yes") and len(made.rows) + len(made.dev) == 60
    assert "None" not in capsys.readouterr().err


def test_missing_values_of_tables_in_memory_are_errors_or_dropped(tmp_path: Path) -> None:
    import pandas

    from pretune.text.corpus.in_memory_tables import save_table

    frame = pandas.DataFrame({"text": [None, *TEXTS[1:]], "label": ["yes", float("nan"), *BOTH[2:]]})
    file = save_table(frame, "train")
    with pytest.raises(PretuneError, match="1 of 60 rows have no label in 'label': line 2; correct them"):
        read_data(file)
    made = read_data(file, drop_invalid=True)
    assert len(made.rows) + len(made.dev) == 58 and made.task.labels == ("no", "yes")
    frame["label"] = BOTH
    with pytest.raises(PretuneError, match="1 of 60 rows have no text in 'text': line 1; correct them"):
        read_data(save_table(frame, "train"))


def test_pairs_without_text_or_score_are_errors_or_dropped(tmp_path: Path) -> None:
    rows = "".join(f"{text},other {text},{number % 5}\n" for number, text in enumerate(TEXTS))
    file = tmp_path / "pairs.csv"
    file.write_text(f"sentence1,sentence2,score\na text,another,\n,,3\n{rows}")
    with pytest.raises(PretuneError, match=r"1 of 62 rows have no score in 'score': line 2; .* --drop-invalid"):
        read_data(file, "contrast")
    made = read_data(file, "contrast", drop_invalid=True)
    assert len(made.rows) + len(made.dev) == 60


def test_unknown_label_raises_an_error_with_its_line(tmp_path: Path) -> None:
    train = write(tmp_path / "train.csv", TEXTS, BOTH)
    dev = write(tmp_path / "dev.csv", ["new", "other"], ["yes", "maybe"])
    with pytest.raises(PretuneError, match=r"dev\.csv, line 3: label 'maybe' was not in training; known: no, yes"):
        pt.finetune("pretune-small-en", train, dev=dev, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
