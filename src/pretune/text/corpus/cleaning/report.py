"""Count what each cleaning rule removes, with examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

EXAMPLES = 3  # per rule
EXAMPLE_CHARACTERS = 80


@dataclass
class Removed:
    """What one cleaning rule removed: the numbers of documents and characters, and the first removed texts."""

    documents: int = 0
    characters: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, text: str, *, document: bool) -> None:
        """Add a removed text to the counts; `document` says whether it is a whole document or a part of one."""
        self.documents += document
        self.characters += len(text)
        if len(self.examples) < EXAMPLES:
            self.examples.append(shorten(text))


@dataclass
class CleaningReport:
    """A report on what cleaning removed from a corpus.

    `documents` and `characters` are the size of the corpus before cleaning; `rules` maps the name of each rule to what
    it removed.
    """

    documents: int = 0
    characters: int = 0
    rules: dict[str, Removed] = field(default_factory=dict)

    def of(self, rule: str) -> Removed:
        """Return the counts and examples of the named rule; add empty ones if it has not removed anything yet."""
        return self.rules.setdefault(rule, Removed())

    def add(self, other: CleaningReport) -> None:
        """Add the counts and examples of `other`, the report on a later part of the corpus, to this report."""
        self.documents += other.documents
        self.characters += other.characters
        for name, removed in other.rules.items():
            entry = self.of(name)
            entry.documents += removed.documents
            entry.characters += removed.characters
            entry.examples = (entry.examples + removed.examples)[:EXAMPLES]

    def state(self) -> dict[str, Any]:
        """Return the report as JSON-serializable values, from which `from_state` rebuilds it."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> CleaningReport:
        """Rebuild a report from the values that `state` returned."""
        rules = {name: Removed(**removed) for name, removed in state["rules"].items()}
        return cls(state["documents"], state["characters"], rules)

    def summary(self, rules: tuple[str, ...]) -> dict[str, Any]:
        """Return the content of cleaning.json: totals, and for each of the given `rules`, in order, what it removed."""
        documents, characters = (
            sum(getattr(entry, name) for entry in self.rules.values()) for name in ("documents", "characters")
        )
        rows = [
            {
                "rule": name,
                "documents": self.of(name).documents,
                "characters": self.of(name).characters,
                "share": self.of(name).characters / max(1, self.characters),
                "examples": self.of(name).examples,
            }
            for name in rules
        ]
        return {
            "documents": self.documents,
            "characters": self.characters,
            "removed_documents": documents,
            "removed_characters": characters,
            "rules": rows,
        }


def shorten(text: str) -> str:
    """Return the beginning of a text, with line breaks and other whitespace replaced by single spaces.

    >>> shorten("Click here\\n to   continue")
    'Click here to continue'
    """
    text = " ".join(text[: 10 * EXAMPLE_CHARACTERS].split())
    return text if len(text) <= EXAMPLE_CHARACTERS else text[: EXAMPLE_CHARACTERS - 1] + "…"
