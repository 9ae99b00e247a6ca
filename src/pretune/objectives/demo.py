"""Objectives at work: what a model reads of a text, and what it has to say, as they arrange and corrupt it themselves.

Words are what stands between spaces. Sentinels are <X>, <Y>, <Z> …; what only marks the end of a text that is written is left
out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from pretune.objectives import OBJECTIVES, Data, Joint, Objective, Task, TwoSided, parse_objective
from pretune.objectives.pretraining.rtd import draw, filling
from pretune.objectives.tasks.renamed_task import kind_of
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import Draws
from pretune.text.corpus.dialogues import QUERY, RESPONSE, Dialogues
from pretune.text.corpus.documents import Document
from pretune.text.examples.labeled import Labeled
from pretune.text.examples.multiple_choice import Candidates, Grouped
from pretune.text.examples.questions import Questions, Span
from pretune.text.examples.tagged import Tagged
from pretune.text.packing.sequences import Packing, Sequences
from pretune.text.store.builder import Settings, make_store
from pretune.text.store.store import Store
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import train

Array = np.ndarray[Any, np.dtype[Any]]

SENTENCE = "I am happy to join with you today."
ENCODED = Template(single=("start", "A", "separator"), pair=("B", "separator"))
BARE = Template(single=("A",), pair=("separator", "B"), target=("start", "A", "end"))  # who writes
VARIANTS = {"mlm": ["mlm(unit=span,rate=0.3)"]}  # shown beside the plain one
LENGTH = SENTINELS = 512
CLASSES = {"nsp": ("follows", "from elsewhere"), "sop": ("in order", "swapped"), "dlm": ("real", "fake")}

# Where the text given will not do.
DOCUMENTS = (
    "Thank you for inviting me to your party last week. I am happy to join with you today. We shall dance.",
    "The river was low in August. Children waded through it. Old men shook their heads.",
)
PAIRS = (("I am happy to join with you", "je suis heureux de vous rejoindre"), ("good morning", "bonjour"))
TURNS = (("Where are you?", "At the station.", "Stay there!"), ("Is it raining?", "Not yet.", "Then let us walk."))
HISTORIES = ("book-7 book-2 book-4 book-9 book-1 book-3 book-8", "book-2 book-4 book-7 book-1 book-9 book-5")
LABELED = (("a delightful film", "positive"), ("two hours I want back", "negative"))
ALIKE, SCORES = (("a plane takes off", "an air plane is taking off"), ("a man sings", "a dog barks")), (5.0, 0.4)
FAUCET = Candidates(
    ("The sink was full.", "Water flowed."), ("He opened the tap.",) * 2, ("The sink was full.", "Water flowed."), (1,)
)
RIVER = Candidates(
    ("Paris", "the Seine"),
    ("Paris lies on the Seine.",) * 2,
    ("Paris is a river.", "the Seine is a river."),
    (1,),
    ("the Seine",),
)
BANKS, SENSES = (("the river bank", "a bank lends money"), ("a bank", "the bank")), ("other", "same")
MARKS = (((10, 14), (2, 6)), ((2, 6), (4, 8)))
TOGETHER = {"choose": 2, "rank": 2, "contrast": 4, "entity": 2}  # sequences that say something only together
TAGGED = ((["Alex", "is", "in", "Los", "Angeles"], ["B-PER", "O", "O", "B-LOC", "I-LOC"]),)
ASKED = (("Where is the party?", "I am happy that the party is at your house today.", "at your house"),)


@dataclass(frozen=True)
class Material:
    """What objectives can work on, by the kind of data they take."""

    tokenizer: Tokenizer
    text: Store
    documents: Store
    histories: Store

    def of(self, joint: Joint) -> tuple[Data, str]:
        """Data for objectives that take no plain text, and what it is; else the text."""
        bare = joint.objectives[0].name in ("lm", "bilm", "prefix") or isinstance(joint.objectives[0], TwoSided)
        data = Data(self.tokenizer, BARE if bare else ENCODED, exponent=1.0)
        if not isinstance(joint.objectives[0], TwoSided):
            data = replace(data, template=replace(data.template, target=()))
        file = Path("example")
        for part in joint.objectives:
            match part.name:
                case "translate" | "tlm" | "trtd":
                    rows = Labeled(file, {}, [a for a, _ in PAIRS], [b for _, b in PAIRS], ["en fr"] * len(PAIRS))
                    return replace(data, rows=rows), "pairs of our own"
                case "dlm":
                    roles = [QUERY, RESPONSE, QUERY] * len(TURNS)
                    turns = Dialogues(file, [turn for turns in TURNS for turn in turns], roles, [3] * len(TURNS))
                    return replace(data, rows=turns), "dialogues of our own"
                case _ if isinstance(part, Task):
                    return replace(data, rows=task_rows(part, file)), "examples of our own"
                case "item":
                    return from_store(data, self.histories), "histories of our own"
        return from_store(data, self.text), ""


def task_rows(task: Objective, file: Path) -> Labeled | Grouped | Tagged | Questions:
    """Examples of a task."""
    name = kind_of(task)
    if name == "tag":
        return Tagged(file, {}, [words for words, _ in TAGGED], [tags for _, tags in TAGGED])
    if name == "answer":
        answers = [[Span(text, passage.find(text))] for _, passage, text in ASKED]
        return Questions(file, {}, [row[0] for row in ASKED], [row[1] for row in ASKED], answers)
    if name in ("choose", "entity"):
        return Grouped(file, {}, [FAUCET if name == "choose" else RIVER], [1])
    if name in ("classify", "prompt", "generate"):
        labels = [(label,) if getattr(task, "multi", False) else label for _, label in LABELED]
        return Labeled(file, {}, [text for text, _ in LABELED], None, labels)
    first, second = ([pair[side] for pair in (BANKS if name == "match" else ALIKE)] for side in (0, 1))
    if name == "match":
        return Labeled(file, {}, first, second, list(SENSES), more={"spans": list(MARKS)})
    if name == "rank":
        return Labeled(file, {}, first[:1] * 2, second, [1.0, 0.0])
    return Labeled(file, {}, first, second, list(SCORES) if name == "regress" else None)


def from_store(data: Data, store: Store) -> Data:
    """All documents of a store."""
    return replace(data, store=store, documents=np.arange(store.documents))


def examples(text: str = SENTENCE, expressions: Iterable[str] | None = None, seed: int = 0) -> list[dict[str, str]]:
    """A row for each objective: what the model reads, what it says, what its decoder reads, and what the example is of.

    >>> examples("one two three", ["lm"])[0]["says"]
    'two three'
    """
    if not text.split():
        raise PretuneError("--text is empty; give a sentence or more")
    if expressions is None:
        expressions = [shown for name in OBJECTIVES for shown in (name, *VARIANTS.get(name, ()))]
    with TemporaryDirectory() as folder:
        material = make_material(text, Path(folder))
        return [
            {"objective": str(expression), **work(joint, material, seed)}
            for expression in expressions
            for joint in parse_objective(expression).joints
        ]


def make_material(text: str, folder: Path) -> Material:
    """Stores of the text and of what else there is, with one tokenizer."""
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]
    pairs = [side for pair in (*PAIRS, *LABELED, *TURNS, *ALIKE, *BANKS, *ASKED) for side in pair]
    pairs += [side for group in (FAUCET, RIVER) for side in (*group.texts, *(group.pairs or ()))]
    everything = [*paragraphs, *DOCUMENTS, *HISTORIES, *pairs, *(" ".join(words) for words, _ in TAGGED)]
    tokenizer = train([Document(t, folder, 1) for t in everything], "items", 1 << 16, sentinels=SENTINELS)
    stores = {}
    for name, texts in (("text", paragraphs), ("documents", DOCUMENTS), ("histories", HISTORIES)):
        file = folder / f"{name}.txt"
        file.write_text("\n".join(texts), encoding="utf-8")
        settings = Settings(layout="line", language="lines" if name == "histories" else "en")
        stores[name] = make_store([file], tokenizer, folder / name, settings, processes=1)
    return Material(tokenizer, **stores)


def work(joint: Joint, material: Material, seed: int) -> dict[str, str]:
    """Let an objective arrange and corrupt its first sequence; other text where it cannot use this."""
    data, note = material.of(joint)
    parts = tuple((weight, part.fit(data.rows) if isinstance(part, Task) else part) for weight, part in joint.parts)
    joint, count = Joint(parts), max(TOGETHER.get(part.name, 1) for _, part in parts)
    draws, packing = Draws(seed), Packing(tokens=LENGTH * count, length=LENGTH, sequences=count)
    try:
        epoch = joint.arrange(data, packing, draws)
    except PretuneError:
        if data.store is not material.text:
            raise
        epoch = joint.arrange(from_store(data, material.documents), packing, draws)
        note = "texts of our own: it takes more than this one"
    packs = [epoch.pack(index) for index in range(len(epoch))]
    sequences = min((pack for pack in packs if len(pack.ids)), key=lambda pack: int(pack.index[0]))
    sequences = joint.corrupt(sequences, material.tokenizer, draws)
    row = render(joint, sequences, material.tokenizer, seed)
    notes = "; ".join(filter(None, (note, row.get("note"))))
    return row | ({"note": notes} if notes else {})


def render(joint: Joint, sequences: Sequences, tokenizer: Tokenizer, seed: int) -> dict[str, str]:
    """One sequence in words."""
    row = {"reads": "", "says": ""}
    generators = {filling(part.name) for part in joint.objectives} & set(sequences.targets)
    for term in generators:
        sequences = fill(sequences, term, tokenizer, seed)
        row["note"] = "fills of a generator that has learned nothing yet"
    words = spell(sequences.ids, tokenizer)
    if "span" in sequences.columns:
        words = [f"*{word}*" if mark else word for word, mark in zip(words, sequences.columns["span"], strict=True)]
    if len(sequences.lengths) > 1:
        words = " / ".join(" ".join(part) for part in apart(sequences, tokenizer)).split()
    if "prefix" in sequences.columns:
        cut = int(np.count_nonzero(sequences.columns["prefix"]))
        words = [*words[:cut], "|", *words[cut:]]
    says = [say_target(joint, term, sequences, tokenizer) for term in sequences.targets if term not in generators]
    if sequences.second is not None and sequences.second.targets:
        says += [say_target(joint, term, sequences.second, tokenizer) for term in sequences.second.targets]
        row["decoder_reads"] = " / ".join(" ".join(part) for part in apart(sequences.second, tokenizer))
    return row | {"reads": " ".join(words), "says": "; ".join(says)}


def fill(sequences: Sequences, term: str, tokenizer: Tokenizer, seed: int) -> Sequences:
    """What a generator that finds all words equally likely puts where text is hidden."""
    at, _ = sequences.targets[term]
    logits = torch.where(torch.as_tensor(tokenizer.specials), -torch.inf, 0.0).expand(len(at), -1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        ids = sequences.ids.copy()
        ids[at] = draw(logits).numpy()
    return replace(sequences, ids=ids)


def say_target(joint: Joint, term: str, sequences: Sequences, tokenizer: Tokenizer) -> str:
    """The targets of a term in words."""
    at, target, *_ = sequences.targets[term]
    if term == "regress":
        return ", ".join(f"{value:g}" for value in target)
    if term in ("choose", "rank", "entity"):
        return ", ".join(" / ".join(f"{share:g}" for share in row) for row in target)
    if term == "contrast":
        return ", ".join(f"{first + 1} with {second + 1}" for first, second in sorted(at.tolist()))
    if term in ("rtd", "trtd"):
        return " ".join("r" if new else "o" for new in sequences.ids != target)
    labels = CLASSES.get(term) or next((getattr(p, "labels", None) for p in joint.objectives if p.name == term), None)
    if labels:
        numbers = target.nonzero()[1] if target.ndim > 1 else target
        return ", ".join(labels[int(number)] for number in numbers)
    if term == "answer":
        return "; ".join(" ".join(spell(sequences.ids[first : last + 1], tokenizer)) for first, last in at)
    if at.ndim > 1 and term == "bilm":
        ways = [spell(target[at[:, 1] == way], tokenizer) for way in (0, 1)]
        return f"{' '.join(ways[0])}; and from the end: {' '.join(ways[1])}"
    spoken = (" / " if len(sequences.lengths) > 1 else ", ").join(
        " ".join(part) for part in runs(at if at.ndim == 1 else at[:, -1], target, sequences, tokenizer)
    )
    return spoken if term in {part.name for part in joint.objectives} else f"{term}: {spoken}"


def runs(at: Array, target: Array, sequences: Sequences, tokenizer: Tokenizer) -> list[list[str]]:
    """Targets of places that follow one another together, without the end of a text that is written."""
    owner = sequences.owner[np.minimum(at, len(sequences.ids) - 1)]
    end = tokenizer.role("end")
    grouped = groupby(range(len(at)), key=lambda i: (int(owner[i]), int(at[i]) - i))
    words = [spell(np.array([target[i] for i in group if target[i] != end]), tokenizer) for _, group in grouped]
    return [part for part in words if part]


def apart(sequences: Sequences, tokenizer: Tokenizer) -> list[list[str]]:
    """The words of each sequence."""
    return [spell(part, tokenizer) for part in np.split(sequences.ids, sequences.offsets[1:-1])]


def spell(ids: Sequence[int] | Array, tokenizer: Tokenizer) -> list[str]:
    """Tokens as people write them, special ones too."""
    named = {tokenizer.role(f"sentinel {number}"): f"<{name}>" for number, name in enumerate("XYZ")}
    return [named.get(int(i)) or tokenizer.vocabulary[int(i)] for i in ids]
