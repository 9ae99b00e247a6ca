"""Tests of cleaning documents: which rule removes what, and what every kind of text must survive."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pretune.runtime.errors import PretuneError
from pretune.text.corpus.cleaning import cleaner as cleaner_module
from pretune.text.corpus.cleaning.cleaner import BENCHMARK, LANGUAGE, Cleaner, CleaningSettings, select_segments
from pretune.text.corpus.cleaning.rule_sets import RULE_SETS, RULES, expand_rule_names
from pretune.text.corpus.ngram_hashes import NgramSet

GOOD = (
    "The old mill by the river has been turned into a museum of local history. Visitors come from the whole country to see "
    "its wheel, which is the largest that was ever built in the north. It opens in spring and closes with the first snow, "
    "so that the volunteers can repair what the water and the winter have done to the wood."
)
LIST = "\n".join(f"{name}." for name in ("Home page of the museum", "News of the whole week", "How to find us here"))


def clean(text: str, *rules: str, language: str = "en", **options: object) -> tuple[str | None, dict[str, int]]:
    """Return what is left of a text, and the characters that each rule removed."""
    cleaner = Cleaner(CleaningSettings(rules, **options), language)  # type: ignore[arg-type]
    left = cleaner.clean(text)
    removed = {name: entry.characters for name, entry in cleaner.report.rules.items()}
    return (None if left is None else left.text), removed


# -- rules ----------------------------------------------------------------------------------------------------------

LINES = [
    ("c4/end-punctuation", "A heading without any full stop", "He said: “I will come back tomorrow.”"),
    ("c4/end-punctuation", "這是一個沒有句號的標題", "這是一個有句號的句子。"),
    ("c4/short-line", "Click here now.", "Click on the picture here."),
    ("c4/short-line", "猫がいる。", "猫が家の前にいる。"),
    ("c4/javascript", "Please enable JavaScript in your browser.", "Please enable cookies in your browser."),
    ("c4/policy", "This site uses cookies to help you.", "The baker uses cookie cutters in her shop."),
    ("c4/policy", "Read our Terms of Use before you go on.", "Use all of the terms of the sum."),
]


@pytest.mark.parametrize(("rule", "bad", "good"), LINES)
def test_rules_for_lines_remove_single_lines(rule: str, bad: str, good: str) -> None:
    assert clean(f"{good}\n{bad}\n{good}", rule) == (f"{good}\n{good}", {rule: len(bad) + 1})
    assert clean(bad, rule)[0] is None


WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
DOCUMENTS = [
    ("c4/few-sentences", "One sentence. And two.", "One. Two. And three."),
    ("c4/lorem-ipsum", GOOD + " Lorem ipsum dolor.", GOOD),
    ("c4/curly-bracket", "int main() { return 0; }", GOOD),
    ("gopher-quality/few-words", "Only a few words.", GOOD),
    ("gopher-quality/many-words", "word " * 100_001, GOOD),
    ("gopher-quality/mean-word-length", "a b c d e f g h", GOOD),
    ("gopher-quality/mean-word-length", "Donaudampfschifffahrtsgesellschaft Kapitänsmützenband", GOOD),
    ("gopher-quality/symbols", "#one #two and #three", "Number #1 of " + " ".join(WORDS)),
    ("gopher-quality/symbols", "And ... so ... on…", GOOD + ".."),
    ("gopher-quality/bullets", "- one\n* two\n• three", "- one\ntwo\nthree"),
    ("gopher-quality/ellipses", "More...\nand more…\nand more", "More...\nand more.\nand more.\nand more."),
    ("gopher-quality/letters", "12 34 56 78 a", "12 a b c d"),
    ("gopher-quality/stop-words", "Nous venons de la ville et de la mer.", GOOD),
    ("gopher-repetition/duplicate-lines", "Home\nNews\nHome\nNews\nHome", "Home\nNews\nWeather\nSports\nHome"),
    ("gopher-repetition/duplicate-paragraphs", "A b.\n\nA b.\n\nC d.", "A b.\n\nC d.\n\nE f."),
    ("gopher-repetition/top-ngram", "buy shoes " * 5 + " ".join(WORDS), GOOD),
    ("gopher-repetition/duplicate-ngrams", (" ".join(WORDS) + " and then ") * 2, GOOD),
]


@pytest.mark.parametrize(("rule", "bad", "good"), DOCUMENTS)
def test_rules_for_documents_remove_whole_documents(rule: str, bad: str, good: str) -> None:
    assert clean(bad, rule) == (None, {rule: len(bad)})
    assert clean(good, rule) == (good, {})


def test_every_rule_has_a_test_and_belongs_to_a_set() -> None:
    assert {rule for rule, *_ in LINES + DOCUMENTS} == set(RULES)
    assert {name for names in RULE_SETS.values() for name in names} >= set(RULES)


def test_stop_words_are_those_of_the_language() -> None:
    russian = "Он не знал, что она уже пришла."
    rule = "gopher-quality/stop-words"
    assert clean(russian, rule, language="en")[0] is None
    assert clean(russian, rule, language="ru")[0] == russian
    for language in ("ko", "zh", "lines"):  # without a list, the rule does not apply
        assert clean("아무 말도 없다.", rule, language=language)[0] is not None


@pytest.mark.parametrize(
    "text",
    [
        "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。" * 2
        + "何でも薄暗い所で泣いていた事だけは記憶している。",
        "그는 아무 말도 없이 집을 나섰다. 비가 오고 있었지만 우산은 없었다. 길에는 사람이 많지 않았다.",
        "ฉันรักประเทศไทย",
    ],
)
def test_word_lengths_of_scripts_without_spaces_are_not_judged(text: str) -> None:
    assert clean(text, "gopher-quality/mean-word-length", "gopher-quality/letters")[0] == text


def test_prose_keeps_books_dialogue_poems_and_short_texts() -> None:
    poem = "Tyger Tyger, burning bright,\nIn the forests of the night;\nWhat immortal hand or eye,\nCould frame thy symmetry?"
    novel = " ".join(f"word{i}" for i in range(100_100))
    dialogue = "Sam: Yes.\nMatt: No.\nSam: That's tomorrow.\nMatt: (cheering)\n— Oui ?"
    for text in (
        poem,
        dialogue,
        "Hello.",
        GOOD,
        novel,
        "JavaScript is a language.",
    ):
        assert clean(text, "prose") == (text, {})
    assert clean(poem, "c4")[0] is None


# -- documents ------------------------------------------------------------------------------------------------------


def test_removed_lines_leave_no_gaps() -> None:
    text = f"Menu\n\n{GOOD}\n\nHome\n\nNews\n\n{GOOD}\n\nShare this\n"
    assert clean(text, "c4/end-punctuation")[0] == f"{GOOD}\n\n{GOOD}"
    spaced = f"{GOOD}\n\n\n\n{GOOD}\n"
    assert clean(spaced, "c4")[0] == spaced  # a text of which nothing is removed stays as it is


def test_line_rules_come_before_document_rules_and_share_the_count() -> None:
    left, removed = clean("First line of it all here.\nA heading without full stop\nAnd a second line of it.", "c4")
    assert left is None and set(removed) == {"c4/end-punctuation", "c4/few-sentences"}
    cleaner = Cleaner(CleaningSettings(("c4",)), "en")
    assert cleaner.clean("A heading\nOk.") is None
    assert {name: entry.documents for name, entry in cleaner.report.rules.items()} == {
        "c4/end-punctuation": 1,  # it removed the most
        "c4/short-line": 0,
    }
    assert cleaner.report.rules["c4/short-line"].examples == ["Ok."]


def test_annotated_spans_move_with_their_text() -> None:
    text = "Drop this heading\nAda met Charles Babbage in London.\nDrop Paris\nShe lived in London too."
    names = [(12, 17), (18, 21), (26, 41), (45, 51), (58, 63), (77, 83)]
    cleaner = Cleaner(CleaningSettings(("c4/end-punctuation",)), "en")
    left = cleaner.clean(text, tuple(names))
    assert left is not None
    assert [left.text[start:end] for start, end in left.spans] == ["Ada", "Charles Babbage", "London", "London"]
    assert select_segments("a b", ((0, 3),), [(0, 2)]) == ("a", ())


def test_languages_are_filtered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaner_module, "identify_language", lambda text: "ru" if "и" in text else "en")
    assert clean("Он и она.", keep_languages=("en", "de")) == (None, {LANGUAGE: 9})
    assert clean("Он и она.", keep_languages=("ru",)) == ("Он и она.", {})


# -- decontamination ------------------------------------------------------------------------------------------------

QUESTION = "How long has the old mill by the river been a museum of local history and craft?"


def test_paragraphs_with_a_benchmark_ngram_are_removed() -> None:
    ngrams = NgramSet.of_texts([QUESTION])
    wrapped = QUESTION.upper().replace(" RIVER ", " RIVER\n")  # the n-gram goes across a line break
    text = f"Before it.\n\nQuiz! {wrapped}\nThe answer.\n\nAfter it."
    assert clean(text, benchmark=ngrams) == ("Before it.\n\nAfter it.", {BENCHMARK: len(text) - 21})
    assert clean(QUESTION, benchmark=ngrams)[0] is None
    short = " ".join(QUESTION.split()[:12])
    assert clean(short, benchmark=ngrams)[0] == short  # 12 words
    assert clean(short, benchmark=NgramSet.of_texts([short]))[0] is None  # a short text is found as a whole


def test_ngram_across_paragraphs_and_one_that_removal_creates() -> None:
    words = QUESTION.split()
    halves = " ".join(words[:8]), " ".join(words[8:])
    ngrams = NgramSet.of_texts([QUESTION, "This will be taken out first of all"])
    assert clean("Start.\n\n" + "\n\n".join(halves) + "\n\nEnd.", benchmark=ngrams)[0] == "Start.\n\nEnd."
    between = "\n\nThis will be taken out first of all.\n\n".join(halves)
    assert clean(f"Start.\n\n{between}\n\nEnd.", benchmark=ngrams)[0] == "Start.\n\nEnd."


# -- all texts ------------------------------------------------------------------------------------------------------

pieces = st.sampled_from(
    [
        GOOD,
        LIST,
        QUESTION,
        "Home",
        "ok",
        "{}",
        "…",
        "- a",
        "\t",
        "",
        "\r",
        "\x00",
        "\u2028x",
        "e\u0301",
        "😀 😀",
        "\ufeff",
        "猫。",
        "#1 #2",
    ]
)
texts = st.lists(pieces | st.text(max_size=30), max_size=8).flatmap(
    lambda parts: st.sampled_from(["\n", "\n\n", " "]).map(lambda gap: gap.join(parts))
)


@settings(max_examples=150)
@given(texts, st.sampled_from([*RULE_SETS, *RULES]))
def test_cleaning_twice_changes_nothing(text: str, name: str) -> None:
    options = CleaningSettings((name,), benchmark=NgramSet.of_texts([QUESTION, "Home ok"]))
    cleaner = Cleaner(options, "en")
    once = cleaner.clean(text)
    removed = sum(entry.characters for entry in cleaner.take_report().rules.values())
    assert 0 <= removed <= len(text) + 1
    if once is None:
        return
    assert once.text == text or removed
    again = cleaner.clean(once.text)
    assert again is not None and again.text == once.text
    assert cleaner.take_report().rules == {}


def test_names_of_rules() -> None:
    assert expand_rule_names(["c4-duplicates", "c4", "c4/policy"]) == (*RULE_SETS["c4"], "c4-duplicates")
    with pytest.raises(
        PretuneError, match=r"no cleaning rule or set of rules named 'gofer-quality'; did you mean 'gopher-quality'\?"
    ):
        CleaningSettings(("gofer-quality",))
    for wrong in (0.0, 1.5, -1.0, float("nan")):
        with pytest.raises(PretuneError, match="Jaccard similarity above 0 and up to 1"):
            CleaningSettings(near_duplicates=wrong)
