"""Tests of translations in the official formats of WMT and IWSLT."""

from __future__ import annotations

from pathlib import Path

import pytest

from pretune.evaluation.suites.declaration import find_suite
from pretune.evaluation.suites.official_metrics import suite_metrics
from pretune.evaluation.suites.translation_formats import read_parallel
from pretune.runtime.errors import PretuneError

SGM = """<{kind} setid="newstest2014" srclang="any"{target}>
<doc sysid="ref" docid="paper.1" genre="news" origlang="en">
<p>
<seg id="1">{first}</seg>
<seg id="2"> {second}
</seg>
</p>
</doc>
</{kind}>
"""
XML = """<?xml version='1.0' encoding='utf-8'?>
<dataset id="newstest2016"><collection id="general">
<doc id="paper.1" origlang="en">
  <src lang="en"><p><seg id="1">Fish &amp; chips.</seg></p><p><seg id="2">A cat.</seg></p></src>
  <ref lang="ro" translator="A"><p><seg id="1">Pește.</seg><seg id="2">O pisică.</seg></p></ref>
  <ref lang="ro" translator="B"><p><seg id="1">Other.</seg><seg id="2">Other.</seg></p></ref>
  <hyp system="x" language="ro"><p><seg id="1">Wrong.</seg><seg id="2">Wrong.</seg></p></hyp>
</doc></collection></dataset>
"""
ROWS = [{"text": "Fish & chips.", "label": "Fisch & Pommes."}, {"text": "A cat.", "label": "Eine Katze."}]


def write(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content, encoding="utf-8")
    return path


def write_sgm(folder: Path) -> list[Path]:
    source = ("Fish &amp; chips.", "A cat.")
    target = ("Fisch &amp; Pommes.", "Eine Katze.")
    texts = (("src", "en", source), ("ref", "de", target))
    return [
        write(
            folder / f"newstest2014-deen-{kind}.{language}.sgm",
            SGM.format(kind=f"{kind}set", target="", first=first, second=second),
        )
        for kind, language, (first, second) in texts
    ]


@pytest.mark.parametrize("folder", ["test-full", ""])
def test_sgm_files_are_read(folder: str, tmp_path: Path) -> None:
    write_sgm(tmp_path / "wmt14" / folder)
    tasks = find_suite("wmt").tasks
    rows = tasks["wmt14-en-de"].read("test", tmp_path, allow_incomplete=True)
    assert rows.rows == ROWS and rows.places[1].endswith("paper.1, segment 2")
    with pytest.raises(PretuneError, match="2 rows instead of the 3,003 of WMT14 en-de's test split"):
        tasks["wmt14-en-de"].read("test", tmp_path)


def test_xml_with_both_sides_is_read_with_its_first_reference(tmp_path: Path) -> None:
    write(tmp_path / "wmt16/newstest2016.en-ro.xml", XML)
    rows = find_suite("wmt").tasks["wmt16-en-ro"].read("test", tmp_path, allow_incomplete=True).rows
    assert rows == [{"text": "Fish & chips.", "label": "Pește."}, {"text": "A cat.", "label": "O pisică."}]


def test_training_texts_are_plain_and_may_have_empty_sides(tmp_path: Path) -> None:
    for name in ("europarl-v7", "commoncrawl", "news-commentary-v9"):
        write(tmp_path / f"wmt14/training/{name}.de-en.en", f"One {name}.\n\nThree.\n")
        write(tmp_path / f"wmt14/training/{name}.de-en.de", "Eins.\nZwei.\nDrei.\n")
    task = find_suite("wmt").tasks["wmt14-de-en"]
    rows = task.read("train", tmp_path).rows
    assert len(rows) == 6 and rows[0] == {"text": "Eins.", "label": "One europarl-v7."}
    assert task.find_files("train", tmp_path)[0][0].name == "europarl-v7.de-en.de"


def test_metadata_of_iwslt_is_skipped(tmp_path: Path) -> None:
    english = write(tmp_path / "train.tags.en-de.en", "<url>http://x</url>\n<title>A</title>\nHello.\n<b>\nBye.\n")
    german = write(tmp_path / "train.tags.en-de.de", "<url>http://x</url>\n<title>B C</title>\nHallo.\nTschüss.\n")
    assert [row for _, row in read_parallel([english, german])] == [
        {"1": "Hello.", "2": "Hallo."},
        {"1": "Bye.", "2": "Tschüss."},
    ]


def test_files_that_do_not_belong_together_are_rejected(tmp_path: Path) -> None:
    source, target = write_sgm(tmp_path)
    write(target, target.read_text("utf-8").replace('docid="paper.1"', 'docid="paper.2"'))
    with pytest.raises(
        PretuneError, match=r"has the text 'paper.1, segment 1' where .* has the text 'paper.2, segment 1'"
    ):
        list(read_parallel([source, target]))
    write(target, source.read_text("utf-8").replace('<seg id="2"> A cat.\n</seg>', ""))
    with pytest.raises(PretuneError, match=r"ref.de.sgm ends before text 2"):
        list(read_parallel([source, target]))
    with pytest.raises(PretuneError, match="an XML file with both languages, or two files"):
        list(read_parallel([write(tmp_path / "a.en", "A.\n")]))
    with pytest.raises(PretuneError, match="no <doc> with segments"):
        list(read_parallel([write(tmp_path / "b.xml", "<html>"), source]))
    with pytest.raises(PretuneError, match=r"document paper\.1 has no <ref>"):
        list(read_parallel([write(tmp_path / "c.xml", XML.replace("ref", "rex"))]))


def test_bleu_of_the_suite_equals_that_of_sacrebleu() -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    rows = [{"label": "The cat sat on the mat, and slept."}, {"label": "It cost 1,000.50 euros."}]
    answers = [{"answer": "The cat sat on a mat and slept."}, {"answer": "It cost 1,000.50 euro."}]
    expected = sacrebleu.corpus_bleu([a["answer"] for a in answers], [[row["label"] for row in rows]]).score
    assert find_suite("wmt").tasks["wmt14-en-de"].metrics == ["bleu", "chrf"]
    assert suite_metrics(["bleu"], rows, answers)["bleu"] == pytest.approx(expected / 100)
