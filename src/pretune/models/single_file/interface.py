"""The functions of exported files: tokenize texts, run the network, and return predictions, vectors, words, or texts.

The constants are replaced by the values of the model, and conditions on them are resolved, when a file is written. `Network` stands for
the network that is written into the file. Only torch, tokenizers and the standard library are there.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from pretune.models.single_file.runtime import Packed
from pretune.text.examples.tag_schemes import convert_tags, parse_tags

MAX_LENGTH = 512  # tokens of a sequence
SINGLE: tuple[tuple[int | str, int], ...] = ()  # the tokens around a text "A": (id, segment)
PAIR: tuple[tuple[int | str, int], ...] = ()  # the tokens around two texts "A" and "B"
HEAD = ""  # the name of the head
READS_ALL_LAYERS = False  # whether the head reads a combination of all layers
PROMPT = ""  # the text before each text of an embedding
PROMPT_TOKENS = 0  # tokens at the beginning of a sequence that are not pooled
LABELS: tuple[str, ...] = ()
MULTI_LABEL = False
THRESHOLD = 0.5
SCHEME = "plain"  # the tagging scheme
DEFAULT_TAG = ""  # the tag of words without a token
OVERLAP = 32  # tokens that the windows of a long sentence share
MASK = ""  # the mask token in tokenizer.json
MASK_ID = 0
VOCABULARY = 0  # number of tokens; further rows of the embedding are padding
SPECIAL_IDS: tuple[int, ...] = ()
FRAME: tuple[int, int] = (0, 0)  # the tokens before and after a text with masks
START_IDS: tuple[int, ...] = ()  # the tokens before a prompt
EMPTY_PROMPT_IDS: tuple[int, ...] = ()  # the tokens in place of an empty prompt
END_IDS: tuple[int, ...] = ()
TOKENS_PER_BATCH = 8192
PRIVATE = "\ue000\ue0f0"  # begins the names of special tokens in tokenizer.json, so that no text contains one


class Network(nn.Module):
    """The network of the model: its backbone and its heads."""

    backbone: Any
    heads: Any


def read_safetensors(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a .safetensors file by name."""
    kinds = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64}
    content = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__", None)
    return {
        name: torch.frombuffer(
            content,
            dtype=kinds[entry["dtype"]],
            count=prod(entry["shape"]),
            offset=start + entry["data_offsets"][0],
        ).view(entry["shape"])
        for name, entry in header.items()
    }


class TextModel:
    """A network with its tokenizer."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        """Read the tokenizer and the weights of a model from its folder."""
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.device = device
        self.network = Network()
        self.network.load_state_dict(read_safetensors(folder / "model.safetensors"))
        self.network.to(device).eval().requires_grad_(False)

    def tokenize(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens."""
        ids: list[int] = self.tokenizer.encode(text.replace(PRIVATE, "  "), add_special_tokens=False).ids
        return ids

    def frame(self, first: list[int], second: Sequence[int] = ()) -> list[tuple[int, int]]:
        """Return the tokens of one or two texts as pairs (id, segment), truncated, with special tokens added."""
        if not PAIR and second:
            raise ValueError("This tokenizer has no separator token for pairs of texts; pass single texts.")
        if not second:
            texts = {"A": first[: MAX_LENGTH - len(SINGLE) + 1]}
        else:
            room = MAX_LENGTH - len(PAIR) + 2
            if len(first) + len(second) > room:  # the longer text is truncated first
                half = room - room // 2 if len(first) > len(second) else room // 2
                first = first[: max(room - len(second), half)]
                second = second[: room - len(first)]
            texts = {"A": first, "B": list(second)}
        framed = []
        for item, segment in PAIR if second else SINGLE:
            framed += [(token, segment) for token in (texts[item] if isinstance(item, str) else [item])]
        return framed

    def pack(self, rows: Sequence[Sequence[tuple[int, int]]]) -> Packed:
        """Concatenate token sequences of (id, segment) to one batch, without padding."""
        tokens = [token for row in rows for token in row]
        columns = {
            "position": [place for row in rows for place in range(len(row))],
            "segment": [segment for _, segment in tokens],
        }
        if PROMPT_TOKENS:
            columns["prompt"] = [int(place < PROMPT_TOKENS) for place in columns["position"]]
        offsets = torch.tensor([0, *map(len, rows)], device=self.device).cumsum(0)
        ids = torch.tensor([token for token, _ in tokens], dtype=torch.long, device=self.device)
        return Packed(
            ids,
            offsets,
            {name: torch.tensor(x, dtype=torch.long, device=self.device) for name, x in columns.items()},
        )

    def batches(self, rows: Sequence[Sequence[tuple[int, int]]]) -> Iterator[tuple[list[int], Packed]]:
        """Yield batches of sequences of similar length, each with the indices of its sequences in `rows`."""
        batch: list[int] = []
        for number in sorted(range(len(rows)), key=lambda number: len(rows[number])):
            if batch and (len(batch) + 1) * len(rows[number]) > TOKENS_PER_BATCH:
                yield batch, self.pack([rows[i] for i in batch])
                batch = []
            batch.append(number)
        if batch:
            yield batch, self.pack([rows[i] for i in batch])

    @torch.no_grad()
    def outputs(self, rows: Sequence[Sequence[tuple[int, int]]], per_token: bool = False) -> list[Tensor]:
        """Return the head's output for each sequence of (id, segment), or for each of its tokens if `per_token`."""
        found: dict[int, Tensor] = {}
        head = self.network.heads[HEAD]
        if READS_ALL_LAYERS:
            features, head = head.features, head.head
        for numbers, packed in self.batches(rows):
            if READS_ALL_LAYERS:
                states = features(self.network.backbone(packed, keep=features.keep).layers, packed)
            else:
                states = self.network.backbone(packed).last
            if per_token:
                parts = head(states).split(packed.offsets.diff().tolist())
            else:
                parts = head(states, packed).unbind()
            found |= {number: part.float().cpu() for number, part in zip(numbers, parts, strict=True)}
        return [found[number] for number in range(len(rows))]

    @torch.no_grad()
    def states(self, texts: Sequence[str], layer: int = -1) -> list[Tensor]:
        """Return the hidden states of a layer for each text, (tokens, width); special tokens are included.

        Layer 0 are the embeddings, layer -1 is the last layer.
        """
        found: dict[int, Tensor] = {}
        for numbers, packed in self.batches([self.frame(self.tokenize(text)) for text in texts]):
            states = self.network.backbone(packed, keep=[layer]).last
            parts = states.split(packed.offsets.diff().tolist())
            found |= {number: part.cpu() for number, part in zip(numbers, parts, strict=True)}
        return [found[number] for number in range(len(texts))]


class Classifier(TextModel):
    """A classifier of texts, or of pairs of texts."""

    def predict(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Return the label and class probabilities of each text or pair; they are None for a text without tokens."""
        sides = [[self.tokenize(text) for text in side] for side in ((texts,) if pairs is None else (texts, pairs))]
        rows = list(zip(*sides, strict=True))
        answers: list[dict[str, Any]] = []
        for row, logits in zip(rows, self.outputs([self.frame(*row) for row in rows]), strict=True):
            if MULTI_LABEL:
                values = logits.double().sigmoid().tolist()
            else:
                values = logits.double().softmax(-1).tolist()
            shares = dict(zip(LABELS, values, strict=True))
            if not any(row):
                shares = dict.fromkeys(shares)
            best = max(values)
            if MULTI_LABEL:
                several = [label for label, value in zip(LABELS, values, strict=True) if value >= THRESHOLD]
                answers.append({"labels": several if any(row) else None, "probabilities": shares})
            else:
                chosen = values.index(best) if THRESHOLD == 0.5 or len(values) != 2 else int(values[1] >= THRESHOLD)
                label, share = (LABELS[chosen], values[chosen]) if any(row) else (None, None)
                answers.append({"label": label, "probability": share, "probabilities": shares})
        return answers


class Regressor(TextModel):
    """A model that predicts a number for a text, or for a pair of texts."""

    def predict(self, texts: Sequence[str], pairs: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Return a dict with the predicted number, `value`, for each text or pair; None for a text without tokens."""
        sides = [[self.tokenize(text) for text in side] for side in ((texts,) if pairs is None else (texts, pairs))]
        rows = list(zip(*sides, strict=True))
        outputs = self.outputs([self.frame(*row) for row in rows])
        return [{"value": x.item() if any(row) else None} for row, x in zip(rows, outputs, strict=True)]


class Tagger(TextModel):
    """A model that tags the words of a text."""

    def predict(self, texts: Sequence[str | list[str]]) -> list[dict[str, Any]]:
        """Return the tag of each word of each text; a text is a list of words, or a string that is split at spaces."""
        sentences = [text.split() if isinstance(text, str) else list(text) for text in texts]
        windows = [window for number, words in enumerate(sentences) for window in self.windows(number, words)]
        outputs = self.outputs([self.frame(ids) for _, ids, _ in windows], per_token=True)
        lead = [item for item, _ in SINGLE].index("A")
        tags = [[DEFAULT_TAG] * len(words) for words in sentences]
        probabilities = [[0.0] * len(words) for words in sentences]
        shown = [[-1] * len(words) for words in sentences]  # distance to the nearer end of the window
        for (number, ids, starts), logits in zip(windows, outputs, strict=True):
            for place, word in starts.items():
                near = min(place, len(ids) - 1 - place)
                if near > shown[number][word]:
                    shares = logits[lead + place].double().softmax(-1)
                    best = int(shares.argmax())
                    shown[number][word], probabilities[number][word] = near, float(shares[best])
                    tags[number][word] = LABELS[best]
        answers = []
        for words, found, certain in zip(sentences, tags, probabilities, strict=True):
            answer: dict[str, Any] = {"tags": convert_tags(found, SCHEME), "probabilities": certain}
            if SCHEME != "plain":
                answer["entities"] = [
                    {"label": e.kind, "text": " ".join(words[e.first : e.last + 1]), "first": e.first, "last": e.last}
                    for e in parse_tags(answer["tags"])
                ]
            answers.append(answer)
        return answers

    def windows(self, number: int, words: list[str]) -> Iterator[tuple[int, list[int], dict[int, int]]]:
        """Yield overlapping windows of a sentence: its `number`, token ids, and each first token's word index."""
        encoding = self.tokenizer.encode(" ".join(words).replace(PRIVATE, "  "), add_special_tokens=False)
        ends, end = [], -1
        for word in words:
            end += len(word) + 1
            ends.append(end)
        # The space before a word belongs to the word.
        owners = [min(bisect_right(ends, start), len(words) - 1) for start, _ in encoding.offsets]
        first = [place for place, owner in enumerate(owners) if place == 0 or owner != owners[place - 1]]
        edges, room = [*first, len(owners)], MAX_LENGTH - len(SINGLE) + 1
        begin = 0
        while owners:
            if len(owners) <= room:
                stop = len(first)
            else:
                stop = max(bisect_right(edges, edges[begin] + room) - 1, begin + 1)
            size = min(edges[stop] - edges[begin], room)
            ids = encoding.ids[edges[begin] : edges[begin] + size]
            starts = {place - edges[begin]: owners[place] for place in first[begin:stop]}
            yield number, ids, starts
            if stop == len(first):
                return
            # Step back by the overlap, but not so far that the next word does not fit.
            back = max(edges[stop] - min(OVERLAP, room // 2), edges[stop + 1] - room)
            begin = min(stop, max(begin + 1, bisect_left(edges, back)))


class Embedder(TextModel):
    """A model that maps texts to vectors."""

    def embed(self, texts: Sequence[str]) -> Tensor:
        """Return one vector per text, (texts, width)."""
        return torch.stack(self.outputs([self.frame(self.tokenize(PROMPT + text)) for text in texts]))


class MaskFiller(TextModel):
    """A masked language model."""

    def fill(self, text: str, top_k: int = 5) -> dict[str, Any]:
        """Return the most likely tokens for each [MASK] of a text, and the text with all masks filled one by one."""
        ids = [FRAME[0], *self.tokenize_with_masks(text), FRAME[1]]
        gaps = [place for place, token in enumerate(ids) if token == MASK_ID]
        if not gaps:
            raise ValueError(f"{text!r}: the text has no mask; put [MASK] in place of each word to predict.")
        if len(ids) > MAX_LENGTH:
            raise ValueError(f"The text has {len(ids)} tokens, but the model reads at most {MAX_LENGTH}; shorten it.")
        found = []
        for row in self.probabilities(ids, gaps):
            best = row.topk(top_k)
            tokens = [self.tokenizer.decode([int(token)]).strip() for token in best.indices]
            rows = zip(tokens, best.values.tolist(), best.indices.tolist(), strict=True)
            found.append([{"token": token, "probability": p, "id": i} for token, p, i in rows])
        left = list(gaps)
        while left:  # the most confident first
            probabilities = self.probabilities(ids, left)
            surest = int(probabilities.max(-1).values.argmax())
            ids[left.pop(surest)] = int(probabilities[surest].argmax())
        return {"text": text, "gaps": found, "filled": self.tokenizer.decode(ids)}

    def tokenize_with_masks(self, text: str) -> list[int]:
        """Return the token ids of a text, in which [MASK] is the mask token."""
        plain = text.replace(PRIVATE, "  ").replace("[MASK]", MASK)
        ids: list[int] = self.tokenizer.encode(plain, add_special_tokens=False).ids
        return ids

    @torch.no_grad()
    def probabilities(self, ids: list[int], places: list[int]) -> Tensor:
        """Return the probabilities of all vocabulary tokens at positions of a sequence, (places, vocabulary)."""
        backbone = self.network.backbone
        states = backbone(self.pack([[(token, 0) for token in ids]])).last[places]
        logits: Tensor = self.network.heads[HEAD](states, backbone.embed.tokens).float().cpu()
        logits[:, VOCABULARY:] = -torch.inf
        logits[:, list(SPECIAL_IDS)] = -torch.inf
        return logits.softmax(-1)


class Generator(TextModel):
    """A causal language model."""

    @torch.no_grad()
    def generate(
        self,
        prompts: Sequence[str],
        max_new_tokens: int = 50,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
    ) -> list[str]:
        """Continue prompts by greedy decoding or, with a temperature, top_k or top_p, by sampling; return whole texts."""
        generator = torch.Generator().manual_seed(seed)
        sampled = (temperature, top_k, top_p) != (None, None, None)
        texts = []
        for prompt in prompts:
            ids = [*START_IDS, *self.tokenize(prompt)] or list(EMPTY_PROMPT_IDS)
            if not 0 < len(ids) < MAX_LENGTH:
                raise ValueError(
                    f"The prompt {prompt!r} has {len(ids)} tokens; give a prompt of 1 to {MAX_LENGTH - 1} tokens."
                )
            for _ in range(min(max_new_tokens, MAX_LENGTH - len(ids))):
                logits = self.next_logits(ids)
                if sampled:
                    logits = keep_likely(logits / (temperature or 1.0), top_k, top_p)
                    token = int(logits.softmax(-1).multinomial(1, generator=generator))
                else:
                    token = int(logits.argmax())
                if token in END_IDS:
                    break
                ids.append(token)
            texts.append(self.tokenizer.decode(ids))
        return texts

    @torch.no_grad()
    def next_logits(self, ids: list[int]) -> Tensor:
        """Return the logits of the token after a sequence, (vocabulary,)."""
        backbone = self.network.backbone
        state = backbone(self.pack([[(token, 0) for token in ids]])).last[-1:]
        logits: Tensor = self.network.heads[HEAD](state, backbone.embed.tokens)[0, :VOCABULARY]
        return logits.float().cpu()


def keep_likely(logits: Tensor, top_k: int | None, top_p: float | None) -> Tensor:
    """Set logits to -inf, except for the `top_k` most likely tokens or those with a total probability of `top_p`."""
    ordered, order = logits.sort(descending=True)
    shares = ordered.softmax(-1)
    dropped = torch.zeros_like(order, dtype=torch.bool)
    if top_k is not None:
        dropped[top_k:] = True
    if top_p is not None:
        dropped |= (
            shares.masked_fill(dropped, 0.0).cumsum(-1) - shares >= top_p * shares.masked_fill(dropped, 0.0).sum()
        )
    return logits.index_fill(0, order[dropped], -torch.inf)
