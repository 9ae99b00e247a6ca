"""The examples of `pretune show objectives`: a model's input and targets, made from a short text by each objective.

Sentinels are shown as <X>, <Y>, <Z> …; tokens that only mark the end of a generated text are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from pretune.objectives import OBJECTIVES, Data, JointObjective, Task, parse_objective, task_names
from pretune.objectives.pretraining.rtd import generator_term, sample_tokens
from pretune.runtime.arrays import Array
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import EpochRandom
from pretune.text.corpus.dialogues import QUERY, RESPONSE, Dialogues
from pretune.text.corpus.documents import Document
from pretune.text.corpus.region_files import ImageRegions
from pretune.text.examples.labeled import LabeledRows
from pretune.text.packing.sequences import Packing, Sequences
from pretune.text.store.builder import StoreSettings, build_store
from pretune.text.store.store import Store
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.tokenizer import Tokenizer
from pretune.text.tokenizers.training import train_on_documents

SENTENCE = "I am happy to join with you today."
ENCODED = Template(single=("start", "A", "separator"), pair=("B", "separator"))
BARE = Template(single=("A",), pair=("separator", "B"), target=("start", "A", "end"))  # of generative models
VARIANTS = {"mlm": ["mlm(unit=span,mask_rate=0.3)"]}  # shown in addition to the default options
LENGTH = SENTINELS = 512

# Used where the given text is not enough.
DOCUMENTS = (
    "Thank you for inviting me to your party last week. I am happy to join with you today. We shall dance.",
    "The river was low in August. Children waded through it. Old men shook their heads.",
)
PAIRS = (("I am happy to join with you", "je suis heureux de vous rejoindre"), ("good morning", "bonjour"))
TURNS = (("Where are you?", "At the station.", "Stay there!"), ("Is it raining?", "Not yet.", "Then let us walk."))
HISTORIES = ("book-7 book-2 book-4 book-9 book-1 book-3 book-8", "book-2 book-4 book-7 book-1 book-9 book-5")


@dataclass(frozen=True)
class DemoData:
    """The user's text and built-in texts on which objectives are demonstrated, as token stores with one tokenizer."""

    tokenizer: Tokenizer
    text: Store
    documents: Store
    histories: Store

    def of(self, joint: JointObjective) -> tuple[Data, str]:
        """Return demo data that the summed objectives `joint` can read, and a note such as "built-in pairs".

        The note is "" if the data is the user's own text, which is used wherever the objectives read running text.
        """
        bare = joint.objectives[0].name in ("lm", "bilm", "prefix") or joint.objectives[0].two_sided
        data = Data(self.tokenizer, BARE if bare else ENCODED, language_alpha=1.0)
        if not joint.objectives[0].two_sided:
            data = replace(data, template=replace(data.template, target=()))
        file = Path("example")
        for part in joint.objectives:
            match part.name:
                case "translate" | "tlm" | "trtd":
                    rows = LabeledRows(file, {}, [a for a, _ in PAIRS], [b for _, b in PAIRS], ["en fr"] * len(PAIRS))
                    return replace(data, rows=rows), "built-in pairs"
                case "mrm" | "itm":
                    return replace(data, rows=demo_images()), "built-in images"
                case "dlm":
                    roles = [QUERY, RESPONSE, QUERY] * len(TURNS)
                    turns = Dialogues(file, [turn for turns in TURNS for turn in turns], roles, [3] * len(TURNS))
                    return replace(data, rows=turns), "built-in dialogues"
                case _ if isinstance(part, Task):
                    return replace(data, rows=part.demonstration()), "built-in examples"
                case "item":
                    return from_store(data, self.histories), "built-in histories"
        return from_store(data, self.text), ""


def demo_images() -> LabeledRows:
    """Return three texts with images of two and three regions each, in which a detector saw the classes 1 to 3."""
    images = []
    for classes in ((1, 2), (3, 1), (2, 3, 1)):
        boxes = np.array([[0.3 * i, 0.0, 0.3 * i + 0.3, 1.0, 0.3] for i in range(len(classes))], dtype=np.float32)
        features = np.eye(4, dtype=np.float32)[list(classes)]
        images.append(ImageRegions(features, boxes, 0.9 * features + 0.025))
    texts = ["a red car by a tree", "a dog in a red car", "a tree, a dog, and a car"]
    return LabeledRows(Path("example"), {}, texts, extra={"image": images})


def from_store(data: Data, store: Store) -> Data:
    """Return a copy of `data` that reads all documents of the token store `store`."""
    return replace(data, store=store, documents=np.arange(store.documents))


def demonstrate(text: str = SENTENCE, expressions: Iterable[str] | None = None, seed: int = 0) -> list[dict[str, str]]:
    """Return one row per objective expression: the model's input and targets for `text`, and a note on the data.

    >>> demonstrate("one two three", ["lm"])[0]["target"]
    'two three'
    """
    if not text.split():
        raise PretuneError("--text is empty; give one sentence or more")
    if expressions is None:
        expressions = [shown for name in OBJECTIVES for shown in (with_companion(name), *VARIANTS.get(name, ()))]
    with TemporaryDirectory() as folder:
        material = make_demo_data(text, Path(folder))
        return [
            {"objective": str(expression), **demonstrate_joint(joint, material, seed)}
            for expression in expressions
            for joint in parse_objective(expression).joints
        ]


def with_companion(name: str) -> str:
    """Return the shortest objective expression that contains the objective `name`.

    >>> with_companion("mlm"), with_companion("corrective")
    ('mlm', 'rtd+corrective')
    """
    companion = OBJECTIVES[name].companion
    return f"{companion}+{name}" if companion else name


def make_demo_data(text: str, folder: Path) -> DemoData:
    """Build token stores in `folder`, one of the user's `text` and others of built-in texts, with one tokenizer."""
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]
    pairs = [side for pair in (*PAIRS, *TURNS) for side in pair] + demo_images().texts
    shown = [asdict(OBJECTIVES[name]().demonstration()) for name in task_names()]
    tasks = dict.fromkeys(demo_texts(shown))
    everything = [*paragraphs, *DOCUMENTS, *HISTORIES, *pairs, *tasks]
    tokenizer = train_on_documents([Document(t, folder, 1) for t in everything], "items", 1 << 16, extra_ids=SENTINELS)
    stores = {}
    for name, texts in (("text", paragraphs), ("documents", DOCUMENTS), ("histories", HISTORIES)):
        file = folder / f"{name}.txt"
        file.write_text("\n".join(texts), encoding="utf-8")
        settings = StoreSettings(split_by="line", language="lines" if name == "histories" else "en")
        stores[name] = build_store([file], tokenizer, folder / name, settings, processes=1)
    return DemoData(tokenizer, **stores)


def demo_texts(value: Any) -> Iterable[str]:
    """Yield all strings in a nested structure of lists and mappings, except those under the key `tags`."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from demo_texts(part) if name != "tags" else ()
    elif isinstance(value, Iterable):
        for part in value:
            yield from demo_texts(part)


def demonstrate_joint(joint: JointObjective, material: DemoData, seed: int) -> dict[str, str]:
    """Apply the summed objectives `joint` to a demo text of `material`; return model input and targets as text.

    `material` has the texts to choose from; `seed` seeds the random masks and noise.
    """
    joint, sequences, note = corrupt_demo(joint, material, seed)
    row = render(joint, sequences, material.tokenizer, seed)
    notes = "; ".join(filter(None, (note, row.get("note"))))
    return row | ({"note": notes} if notes else {})


def corrupt_demo(joint: JointObjective, material: DemoData, seed: int) -> tuple[JointObjective, Sequences, str]:
    """Apply the summed objectives `joint` to a demo text of `material`; return objectives, sequences, and a note.

    The returned objectives are fitted to the demo data, and the returned sequences are corrupted by them. The note
    tells where the text comes from, such as "built-in pairs"; it is "" if the text is the user's own.
    """
    data, note = material.of(joint)
    parts = tuple((weight, part.fit(data.rows) if isinstance(part, Task) else part) for weight, part in joint.parts)
    joint = JointObjective(parts)
    count = max(part.demonstration_sequences for _, part in parts)
    draws, packing = EpochRandom(seed), Packing(tokens=LENGTH * count, length=LENGTH, sequences=count)
    try:
        epoch = joint.arrange(data, packing, draws)
    except PretuneError:
        if data.store is not material.text:
            raise
        epoch = joint.arrange(from_store(data, material.documents), packing, draws)
        note = "built-in texts, because it needs more than this one"
    packs = [epoch.pack(index) for index in range(len(epoch))]
    sequences = min((pack for pack in packs if len(pack.ids)), key=lambda pack: int(pack.index[0]))
    return joint, joint.corrupt(sequences, material.tokenizer, draws), note


def render(joint: JointObjective, sequences: Sequences, tokenizer: Tokenizer, seed: int) -> dict[str, str]:
    """Return the model's input and targets as readable text, given sequences corrupted by the objectives of `joint`."""
    row = {"input": "", "target": ""}
    generators = {generator_term(part.name) for part in joint.objectives} & set(sequences.targets)
    for term in generators:
        sequences = fill(sequences, term, tokenizer, seed)
        row["note"] = "tokens sampled by an untrained generator"
    words = spell(sequences.ids, tokenizer)
    if "span" in sequences.columns:
        words = [f"*{word}*" if mark else word for word, mark in zip(words, sequences.columns["span"], strict=True)]
    if len(sequences.lengths) > 1:
        words = " / ".join(" ".join(part) for part in split_words(sequences, tokenizer)).split()
    if "prefix" in sequences.columns:
        cut = int(np.count_nonzero(sequences.columns["prefix"]))
        words = [*words[:cut], "|", *words[cut:]]
    says = [describe_target(joint, term, sequences, tokenizer) for term in sequences.targets if term not in generators]
    if sequences.second is not None and sequences.second.targets:
        says += [describe_target(joint, term, sequences.second, tokenizer) for term in sequences.second.targets]
        row["decoder_input"] = " / ".join(" ".join(part) for part in split_words(sequences.second, tokenizer))
    return row | {"input": " ".join(words), "target": "; ".join(says)}


def fill(sequences: Sequences, term: str, tokenizer: Tokenizer, seed: int) -> Sequences:
    """Replace the masked tokens of the loss term `term` by random tokens, as an untrained ELECTRA generator would."""
    at, _ = sequences.targets[term]
    logits = torch.where(torch.as_tensor(tokenizer.specials), -torch.inf, 0.0).expand(len(at), -1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        ids = sequences.ids.copy()
        ids[at] = sample_tokens(logits).numpy()
    return replace(sequences, ids=ids)


def describe_target(joint: JointObjective, term: str, sequences: Sequences, tokenizer: Tokenizer) -> str:
    """Return the prediction targets of the loss term named `term` as readable text."""
    at, target, *_ = sequences.targets[term]
    own = [part for part in joint.objectives if part.name == term]
    for part in own:
        text = part.describe_target(at, target, sequences.ids, lambda ids: " ".join(spell(ids, tokenizer)))
        if text is not None:
            return text
    spoken = (" / " if len(sequences.lengths) > 1 else ", ").join(
        " ".join(part) for part in adjacent_targets(at if at.ndim == 1 else at[:, -1], target, sequences, tokenizer)
    )
    return spoken if own else f"{term}: {spoken}"


def adjacent_targets(at: Array, target: Array, sequences: Sequences, tokenizer: Tokenizer) -> list[list[str]]:
    """Return the target tokens as words, grouped into runs of adjacent positions, without end-of-text tokens.

    `at` (m,) has the positions of the targets in the packed sequences, and `target` (m,) their token ids.
    """
    owner = sequences.owner[np.minimum(at, len(sequences.ids) - 1)]
    end = tokenizer.role("end")
    grouped = groupby(range(len(at)), key=lambda i: (int(owner[i]), int(at[i]) - i))
    words = [spell(np.array([target[i] for i in group if target[i] != end]), tokenizer) for _, group in grouped]
    return [part for part in words if part]


def split_words(sequences: Sequences, tokenizer: Tokenizer) -> list[list[str]]:
    """Return the tokens of each packed sequence as a list of words."""
    return [spell(part, tokenizer) for part in np.split(sequences.ids, sequences.offsets[1:-1])]


def spell(ids: Sequence[int] | Array, tokenizer: Tokenizer) -> list[str]:
    """Convert token ids to words; special tokens keep their names, and the first sentinels become <X>, <Y>, <Z>."""
    named = {tokenizer.role(f"sentinel {number}"): f"<{name}>" for number, name in enumerate("XYZ")}
    return [named.get(int(i)) or tokenizer.vocabulary[int(i)] for i in ids]
