"""The operations of models, computed for batches in a worker process: predict, tag, answer, fill, embed, and so on.

A function `load_…` loads each operation from an open model, or raises an error if the model cannot do it. The operation
is a function of a batch of items and of options that apply to all items. It returns one result per item, in order: a
value that can be written as JSON, or an error if the item is invalid.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from pretune.inference.ask import load_text_generator
from pretune.inference.embed import TextEmbedder
from pretune.inference.fill import MaskFiller
from pretune.inference.generation.decoding_loops import GenerationConfig
from pretune.inference.generation.translate import Translator
from pretune.inference.neighbors import find_neighbors
from pretune.inference.predict import Predictor, load_task_model, rows_without_tokens
from pretune.models.checkpoint_heads import stored_objectives
from pretune.models.model import Model
from pretune.models.open_model import OpenModel
from pretune.objectives import Task
from pretune.probing.attention_maps import attention_maps
from pretune.runtime.errors import PretuneError
from pretune.serving.limits import MAX_ATTENTION_TOKENS, MAX_MASKS, MAX_NEIGHBOR_WORDS
from pretune.text.examples.annotated_spans import split_words
from pretune.text.examples.labeled import LabeledRows
from pretune.text.examples.question_answering import Questions
from pretune.text.examples.tagged import SplitText, TaggedSentences

Item: TypeAlias = Mapping[str, Any]
Result: TypeAlias = Any  # what is written as JSON, or an error
Operation: TypeAlias = Callable[[Sequence[Item], Mapping[str, Any]], list[Result]]
Stream: TypeAlias = Callable[[Item, Mapping[str, Any]], Generator[str, None, dict[str, Any]]]

TEXTS = Path("texts")  # stands for the file of texts that come from requests
CLASSIFIERS = ("classify", "regress", "prompt")  # the tasks of `predict`
TRANSLATORS = ("translate", "generate")  # the objectives of `translate`


def load_task(opened: OpenModel, kinds: Sequence[str]) -> tuple[Model, Any]:
    """Return an open model, and the first of its tasks that is of one of the given kinds."""
    mixture = stored_objectives(opened)
    for part in mixture.objectives if mixture is not None else ():
        if isinstance(part, Task) and part.kind in kinds:
            return load_task_model(opened, name=part.name)
    raise PretuneError(f"{opened}: the model has no task of the kind {' or '.join(kinds)}; fine-tune it first")


def load_predict(opened: OpenModel) -> Operation:
    """Load the operation that predicts labels or numbers; items have a `text` and, in batches of pairs, a `pair`."""
    model, task = load_task(opened, CLASSIFIERS)

    def predict(items: Sequence[Item], options: Mapping[str, Any]) -> list[Result]:
        pairs = [item["pair"] for item in items] if options.get("pairs") else None
        examples = LabeledRows(TEXTS, {}, [item["text"] for item in items], pairs)
        answers: list[Result] = Predictor(model, task, examples)()
        for row in rows_without_tokens(examples, model.require_tokenizer()):
            answers[row] = PretuneError("the text has no words that the model knows; give a text with words")
        return answers

    return predict


def load_tag(opened: OpenModel) -> Operation:
    """Load the operation that tags words; items have a `text`, and results have spans with character offsets."""
    model, task = load_task(opened, ["tag"])
    if task.unwrapped.predicate is not None:
        raise PretuneError(
            f"{opened}: the model tags the semantic roles of a predicate, which a request cannot give; serve another model"
        )

    def tag(items: Sequence[Item], options: Mapping[str, Any]) -> list[Result]:
        texts = [item["text"] for item in items]
        split = [SplitText(text, word_bounds(text, task.unwrapped.splitting)) for text in texts]
        examples = TaggedSentences(TEXTS, {}, [part.words for part in split], originals=split)
        answers = Predictor(model, task, examples)()
        return [
            {"text": text, "spans": tagged_spans(answer, part)}
            for text, answer, part in zip(texts, answers, split, strict=True)
        ]

    return tag


def word_bounds(text: str, splitting: str) -> list[tuple[int, int]]:
    """Return the start and the end of each word of a text as character offsets.

    Words are split at spaces or, if `splitting` is "punctuation", also at punctuation.

    >>> word_bounds("Hi, you", "spaces"), word_bounds("Hi, you", "punctuation")
    ([(0, 3), (4, 7)], [(0, 2), (2, 3), (4, 7)])
    """
    return split_words(text) if splitting == "punctuation" else [match.span() for match in re.finditer(r"\S+", text)]


def tagged_spans(answer: Mapping[str, Any], split: SplitText) -> list[dict[str, Any]]:
    """Return the labeled spans of a tagged text: its entities, or single words if the tags do not mark entities."""
    entities = answer.get("entities")
    shares = answer["probabilities"]
    if entities is None:
        labels = [(label, word, word) for word, label in enumerate(answer["tags"])]
    else:
        labels = [(one["label"], one["first"], one["last"]) for one in entities]
    spans = []
    for label, first, last in labels:
        begin, end = split.bounds[first][0], split.bounds[last][1]
        probability = min(shares[first : last + 1])
        spans.append(
            {"begin": begin, "end": end, "label": label, "text": split.text[begin:end], "probability": probability}
        )
    return spans


def load_answer(opened: OpenModel) -> Operation:
    """Load the operation that answers questions; items have a `question` and a `context`."""
    model, task = load_task(opened, ["answer"])

    def answer(items: Sequence[Item], options: Mapping[str, Any]) -> list[Result]:
        questions, contexts = [item["question"] for item in items], [item["context"] for item in items]
        places = [f"question {number}" for number in range(1, len(items) + 1)]
        examples = Questions(TEXTS, {}, questions, contexts, None, places, [""] * len(items))
        return [
            {"answer": one["answer"], "begin": one["start"], "end": one["end"], "score": one["probability"]}
            for one in Predictor(model, task, examples)()
        ]

    return answer


def load_fill(opened: OpenModel) -> Operation:
    """Load the operation that predicts masked tokens; items have a `text` with [MASK].

    The option `top_k` is the number of candidates per mask.
    """
    if "mlm" not in opened.core.root.heads:  # no attempt to load it: that would log that a new head is random
        raise PretuneError(f"{opened}: the model was not trained to fill masks; serve one that was trained with mlm")
    filler = MaskFiller.load(opened)

    def fill(items: Sequence[Item], options: Mapping[str, Any]) -> list[Result]:
        found = filler.fill_batch([item["text"] for item in items], options["top_k"], MAX_MASKS)
        if options.get("sequences"):
            found = [add_sequences(filler, row) for row in found]
        return [{"text": row["text"], "filled": row["filled"], "masks": row["gaps"]} for row in found]

    return fill


def add_sequences(filler: MaskFiller, row: dict[str, Any]) -> dict[str, Any]:
    """Return the result for a masked text, with the token id and the filled text added to each candidate for a mask."""
    ids = filler.encode(row["text"])
    tokenizer = filler.model.require_tokenizer()
    for place, candidates in zip(filler.find_gaps(row["text"], ids), row["gaps"], strict=True):
        for candidate in candidates:
            filled = [*ids[:place], candidate["id"], *ids[place + 1 :]]
            candidate["sequence"] = tokenizer.decode(filled)
    return row


def load_embed(opened: OpenModel) -> Operation:
    """Load the operation that embeds texts; items have a `text`.

    With the option `count`, results also contain the number of tokens of the text.
    """
    embedders: dict[str | None, TextEmbedder] = {None: TextEmbedder.load(opened)}

    def embed(items: Sequence[Item], options: Mapping[str, Any]) -> list[Result]:
        pooling = options.get("pooling")
        if pooling not in embedders:
            embedders[pooling] = TextEmbedder.load(opened, pooling)
        texts = [item["text"] for item in items]
        vectors: list[Result] = embedders[pooling](texts).tolist()
        if not options.get("count"):
            return vectors
        _, counts = opened.core.require_tokenizer().encode_many(texts)
        return [{"embedding": v, "tokens": int(count)} for v, count in zip(vectors, counts, strict=True)]

    return embed


def load_generate(opened: OpenModel) -> tuple[Operation, Stream]:
    """Load the operation that generates text, in two forms: all at once, and as a stream.

    Items have a `prompt`, and the options are decoding settings.
    """
    writer = load_text_generator(opened)

    def generate(items: Sequence[Item], options: Mapping[str, Any]) -> list[Result]:
        decoding, prompts = GenerationConfig(**options), [item["prompt"] for item in items]
        if decoding.is_sampling:  # the draws of a text depend on its place in a batch
            return [generated(writer.generate([prompt], decoding)[0]) for prompt in prompts]
        return [generated(row) for row in writer.generate(prompts, decoding)]

    def stream(item: Item, options: Mapping[str, Any]) -> Generator[str, None, dict[str, Any]]:
        row = yield from writer.stream(item["prompt"], GenerationConfig(**options))
        return generated(row)

    return generate, stream


def generated(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the generated text of a result, without its prompt."""
    return {"text": row.get("continuation", row["text"]), "tokens": row["tokens"], "ended": row["ended"]}


def load_translate(opened: OpenModel) -> Operation:
    """Load the operation that translates texts; items have a `text`, and the options are decoding settings."""
    mixture = stored_objectives(opened)
    if mixture is None or not any(part.kind in TRANSLATORS for part in mixture.objectives):
        raise PretuneError(f"{opened}: the model was not trained to translate; serve a translation model")
    translator = Translator.load([opened])

    def translate(items: Sequence[Item], options: Mapping[str, Any]) -> list[Result]:
        texts = [item["text"] for item in items]
        written = translator.translate(texts, GenerationConfig(**options))
        return [row["translation"] for row in translator.describe(texts, written)]

    return translate


def load_neighbors(opened: OpenModel) -> Operation:
    """Load the operation that finds words used similarly to a given word in its context.

    Items have a `word`, a `text` that contains it, the `texts` to search, the number of results `top_k`, and a
    `layer`.
    """

    def neighbors(items: Sequence[Item], options: Mapping[str, Any]) -> list[Result]:
        return [
            [
                locate_word(row)
                for row in find_neighbors(
                    opened,
                    item["word"],
                    item["text"],
                    item["texts"],
                    top_k=item["top_k"],
                    layer=item["layer"],
                    max_words=MAX_NEIGHBOR_WORDS,
                    language="en",
                )
            ]
            for item in items
        ]

    return neighbors


def locate_word(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a found word with its character offsets in its text, which are None if its spelling in the text differs.

    >>> locate_word({"word": "bank", "similarity": 0.5, "text": "The Bank."})["begin"]
    4
    """
    word, text = row["word"], row["text"]
    match = re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE)
    begin, end = match.span() if match else (None, None)
    return {"text": text, "word": word, "begin": begin, "end": end, "similarity": row["similarity"]}


def load_attention(opened: OpenModel) -> Operation:
    """Load the operation that returns attention maps; items have a `text`, and a list of `layers` or None for all."""
    model = opened.core

    def attention(items: Sequence[Item], options: Mapping[str, Any]) -> list[Result]:
        return [attention_of(model, item["text"], item["layers"]) for item in items]

    return attention


def attention_of(model: Model, text: str, layers: Sequence[int] | None) -> dict[str, Any]:
    """Return the tokens of a text, and its attention weights, (layers, heads, tokens, tokens), in the given layers."""
    count = len(model.require_tokenizer().encode(text))
    if count > MAX_ATTENTION_TOKENS:
        raise PretuneError(
            f"the text has {count} tokens, too many to show its attention; shorten it to {MAX_ATTENTION_TOKENS} tokens"
        )
    ((_, found),) = attention_maps(model, [text], tokens=True)
    chosen = range(len(found.weights)) if layers is None else layers
    if wrong := [layer for layer in chosen if not 0 <= layer < len(found.weights)]:
        raise PretuneError(f"there is no layer {wrong[0]}; choose from 0 to {len(found.weights) - 1}")
    weights = [np.round(found.weights[layer], 4).tolist() for layer in chosen]
    return {"tokens": found.units, "attention": weights}


LOADERS: dict[str, Callable[[OpenModel], Operation]] = {
    "predict": load_predict,
    "tag": load_tag,
    "answer": load_answer,
    "fill": load_fill,
    "embed": load_embed,
    "translate": load_translate,
    "neighbors": load_neighbors,
    "attention": load_attention,
}
# A small batch of each operation, which shows whether a model can do it, and warms it up.
TRIALS: dict[str, tuple[Item, Mapping[str, Any]]] = {
    "predict": ({"text": "a text"}, {}),
    "tag": ({"text": "a text"}, {}),
    "answer": ({"question": "a text ?", "context": "a text"}, {}),
    "fill": ({"text": "a [MASK]"}, {"top_k": 1}),
    "embed": ({"text": "a text"}, {}),
    "generate": ({"prompt": "a text"}, {"max_new_tokens": 1}),
    "translate": ({"text": "a text"}, {"max_new_tokens": 1}),
    "attention": ({"text": "a text", "layers": None}, {}),
}
