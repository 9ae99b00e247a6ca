"""Clean one document after another, by the rules and filters of `CleaningSettings`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pretune.runtime.errors import PretuneError
from pretune.text.corpus.annotations import Spans
from pretune.text.corpus.cleaning.decontamination import contaminated_lines
from pretune.text.corpus.cleaning.document_features import DocumentFeatures
from pretune.text.corpus.cleaning.language_identification import identify_language
from pretune.text.corpus.cleaning.report import CleaningReport
from pretune.text.corpus.cleaning.rule_sets import DUPLICATE_SPANS, RULES, expand_rule_names
from pretune.text.corpus.cleaning.rules import DocumentRule, LineRule
from pretune.text.corpus.ngram_hashes import NgramHasher, NgramSet

LANGUAGE, BENCHMARK, NEAR_DUPLICATES = "language", "benchmark", "near-duplicates"  # in reports


@dataclass(frozen=True)
class CleaningSettings:
    """The settings for cleaning a corpus before it is tokenized: rules, languages, duplicates and benchmark texts.

    `rules` are names of cleaning rules or sets of rules. `keep_languages` are the ISO 639-1 codes of the languages to
    keep; an empty tuple keeps all of them. `near_duplicates` is the Jaccard similarity from which a document counts as
    a near duplicate. Paragraphs that contain an n-gram of `benchmark` are removed.
    """

    rules: tuple[str, ...] = ()  # names of sets of rules, or of rules
    keep_languages: tuple[str, ...] = ()  # ISO 639-1 codes; empty: all
    near_duplicates: float | None = None  # Jaccard similarity from which a document is a near duplicate
    benchmark: NgramSet | None = field(default=None, repr=False)  # n-grams that paragraphs to remove contain

    def __post_init__(self) -> None:
        expand_rule_names(self.rules)
        if self.near_duplicates is not None and not 0 < self.near_duplicates <= 1:
            raise PretuneError(
                f"near_duplicates={self.near_duplicates}: expected a Jaccard similarity above 0 and up to 1, such as 0.8"
            )

    def describe(self) -> dict[str, Any]:
        """Return the settings as JSON-serializable values; a digest represents the set of benchmark n-grams."""
        values = {
            "rules": list(expand_rule_names(self.rules)),
            "keep_languages": sorted(self.keep_languages),
            "near_duplicates": self.near_duplicates,
            "benchmark": self.benchmark.digest if self.benchmark is not None else None,
        }
        return {name: value for name, value in values.items() if value}

    @classmethod
    def from_description(cls, values: dict[str, Any], benchmark: NgramSet | None) -> CleaningSettings:
        """Rebuild settings from the values that `describe` returned and the set of benchmark n-grams (None: no set)."""
        return cls(
            tuple(values.get("rules", ())),
            tuple(values.get("keep_languages", ())),
            values.get("near_duplicates"),
            benchmark,
        )

    @property
    def removes_spans(self) -> bool:
        """Return whether the settings include the rule that removes repeated spans of three sentences."""
        return DUPLICATE_SPANS in expand_rule_names(self.rules)

    @property
    def reported(self) -> tuple[str, ...]:
        """Return the names of the chosen rules and filters, in the order in which they are applied."""
        names = [RULES[name] for name in expand_rule_names(self.rules) if name in RULES]
        return (
            *(rule.name for rule in names if isinstance(rule, LineRule)),
            *([BENCHMARK] if self.benchmark is not None else []),
            *(rule.name for rule in names if isinstance(rule, DocumentRule)),
            *([LANGUAGE] if self.keep_languages else []),
            *([NEAR_DUPLICATES] if self.near_duplicates is not None else []),
            *([DUPLICATE_SPANS] if self.removes_spans else []),
        )


class Cleaner:
    """Clean documents one at a time, and count what is removed in `report`.

    Cleaning an already cleaned document changes nothing, because lines are removed before the rules for whole documents
    are applied to the remaining text.

    >>> cleaner = Cleaner(CleaningSettings(rules=("c4/javascript",)), "en")
    >>> cleaner.clean("A text.\\nEnable JavaScript!\\nIts end.").text
    'A text.\\nIts end.'
    >>> cleaner.report.rules["c4/javascript"].examples
    ['Enable JavaScript!']
    """

    def __init__(self, settings: CleaningSettings, language: str) -> None:
        self.settings, self.language, self.report = settings, language, CleaningReport()
        rules = [RULES[name] for name in expand_rule_names(settings.rules) if name in RULES]
        self.line_rules = [rule for rule in rules if isinstance(rule, LineRule)]
        self.document_rules = [rule for rule in rules if isinstance(rule, DocumentRule)]
        self._hasher = NgramHasher()

    def clean(self, text: str, spans: Spans = ()) -> CleanedDocument | None:
        """Return a document after cleaning, given its text and its annotated `spans`; None if nothing of it is left."""
        self.report.documents += 1
        self.report.characters += len(text)
        whole = CleanedDocument(self._features(text), spans)
        by_rule = [self._line_rule(line) for line in text.split("\n")] if self.line_rules else []
        document = self._remove_lines(whole, by_rule)
        if document is not None and self.settings.benchmark is not None:
            lines = contaminated_lines(document.features, self.settings.benchmark)
            document = self._remove_lines(document, [BENCHMARK if removed else "" for removed in lines])
        if document is None:
            return None
        for rule in self.document_rules:
            if rule.removes(document.features):
                self.report.of(rule.name).add(document.text, document=True)
                return None
        if self.settings.keep_languages and identify_language(document.text) not in self.settings.keep_languages:
            self.report.of(LANGUAGE).add(document.text, document=True)
            return None
        return document

    def take_report(self) -> CleaningReport:
        """Return the report on the documents cleaned since the last call of this method, and start a new report."""
        report, self.report = self.report, CleaningReport()
        return report

    def _features(self, text: str) -> DocumentFeatures:
        return DocumentFeatures(text, self.language, self._hasher)

    def _line_rule(self, line: str) -> str:
        """Return the name of the first rule that removes a line; "" if no rule does."""
        line = line.strip()
        return next((rule.name for rule in self.line_rules if rule.removes(line)), "") if line else ""

    def _remove_lines(self, document: CleanedDocument, rules: Sequence[str]) -> CleanedDocument | None:
        """Return a document without the lines that rules remove; None if nothing is left.

        `rules` has one entry per line: the name of the rule that removes the line, or "" for a line to keep.
        """
        if not any(rules):
            return document
        segments = list[tuple[int, int]]()
        runs = list[tuple[str, int, int]]()  # lines in a row that one rule removes
        start, blank, gap = 0, True, False
        for line, rule in zip(document.text.split("\n"), rules, strict=True):
            end = min(start + len(line) + 1, len(document.text))
            if rule:
                if runs and runs[-1][0] == rule and runs[-1][2] == start:
                    runs[-1] = rule, runs[-1][1], end
                else:
                    runs.append((rule, start, end))
                gap = True
            elif line.strip() or not (gap and blank):  # the blank lines around removed ones are not doubled
                segments.append((start, end))
                blank = not line.strip()
                gap = gap and blank
            start = end
        left = select_segments(document.text, document.spans, segments)
        nothing = not left[0].strip()
        longest = max(runs, key=lambda run: run[2] - run[1])
        for run in runs:  # of a document of which nothing is left, the rule that removed the most counts it
            self.report.of(run[0]).add(document.text[run[1] : run[2]], document=nothing and run is longest)
        return None if nothing else CleanedDocument(self._features(left[0]), left[1])


@dataclass(frozen=True)
class CleanedDocument:
    """A document after cleaning: its text with the features that rules use, and the annotated spans of its text."""

    features: DocumentFeatures
    spans: Spans = ()

    @property
    def text(self) -> str:
        """Return the text of the document after cleaning."""
        return self.features.text


def select_segments(text: str, spans: Spans, segments: Sequence[tuple[int, int]]) -> tuple[str, Spans]:
    """Join segments (start, end) of a text, and move the annotated spans along with them.

    Return the joined text, and the spans that lie inside a segment, with their positions in the joined text; other
    spans are dropped.

    >>> select_segments("ab cd ef", ((0, 2), (1, 4), (6, 8)), [(0, 3), (6, 8)])
    ('ab ef', ((0, 2), (3, 5)))
    """
    kept = list[tuple[int, int]]()
    before = 0
    for start, end in segments:
        shift = before - start
        kept += [(a + shift, b + shift) for a, b in spans if start <= a and b <= end]
        before += end - start
    joined = "".join(text[start:end] for start, end in segments).rstrip()
    return joined, tuple((a, b) for a, b in kept if b <= len(joined))
