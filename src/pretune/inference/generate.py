"""Writing on: what a language model makes of a beginning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pretune.devices import choose_device
from pretune.errors import PretuneError
from pretune.inference.beams import Beam, Search
from pretune.inference.choosing import discourage, draw
from pretune.model import Model, find_folder, load_model, read_config
from pretune.nn.cache import Cache
from pretune.nn.patterns import causal
from pretune.objectives import parse_objective
from pretune.packed import Packed, pack
from pretune.randomness import uniform

Array = np.ndarray[Any, np.dtype[Any]]
ROWS = 32  # sequences read at once
FEW = 3  # rows up to here a CPU multiplies faster with matrices that are stored row by row


@dataclass(frozen=True)
class Decoding:
    """How tokens are chosen: the likeliest; by chance, if any of temperature, top_k and top_p is given; or by beams."""

    tokens: int = 50  # new ones, at most
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    beams: int = 1
    length_penalty: float = 1.0
    repetition_penalty: float = 1.0
    no_repeat_ngram: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        lowest = {"tokens": 1, "top_k": 1, "beams": 1, "no_repeat_ngram": 0}
        for name, least in lowest.items():
            if (value := getattr(self, name)) is not None and value < least:
                raise PretuneError(f"{name} {value} is too small; {least} or more")
        for name in ("temperature", "top_p", "repetition_penalty"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise PretuneError(f"{name} {value:g} must be above 0")
        if self.top_p is not None and self.top_p > 1:
            raise PretuneError(f"top_p {self.top_p:g} is a probability; at most 1")
        if self.beams > 1 and self.by_chance:
            raise PretuneError(
                "beams look for the likeliest text; leave out temperature, top_k and top_p, or the beams"
            )

    @property
    def by_chance(self) -> bool:
        """Whether tokens are drawn."""
        return (self.temperature, self.top_k, self.top_p) != (None, None, None)


class Reader:
    """A causal language model that reads some sequences bit by bit, and says after each bit what may follow."""

    def __init__(
        self, model: Model, sequences: int, slots: int, source: Sequence[Packed] = (), head: str = "lm"
    ) -> None:
        """`slots`: tokens that a sequence may come to have. `source`: what an encoder reads, where there is one."""
        self.backbone, self.head, self.source = model.backbone, model.root.heads[head], source
        self.vocabulary = model.need_tokenizer().target.size  # rows beyond only round the size
        self.cache: Any = getattr(self.backbone, "cache", Cache)(sequences, slots)

    def read(self, ids: Sequence[Sequence[int]]) -> Tensor:
        """The next tokens of every sequence → (sequences, vocabulary) logits after the last of them, on the host."""
        tokens = self.backbone.embed.tokens
        lengths = np.array([len(bit) for bit in ids])
        first = np.cumsum(lengths) - lengths
        positions = np.arange(lengths.sum()) + np.repeat(self.cache.used - first, lengths)
        packed = pack(np.concatenate([np.asarray(bit) for bit in ids]), lengths, positions=positions, pattern=causal)
        states = self.backbone(*self.source, packed.to(tokens.device), carry=self.cache).last
        last = states[torch.from_numpy(first + lengths - 1).to(states.device)]
        return self.head(last, tokens)[:, : self.vocabulary].float().cpu()  # type: ignore[no-any-return]

    def select(self, rows: Sequence[int]) -> None:
        """Sequence i goes on from what sequence rows[i] is."""
        if list(rows) != list(range(len(self.cache.used))):
            self.cache.select(np.array(rows, dtype=np.int64))


def write_on(
    reader: Reader,
    prompts: Sequence[list[int]],
    rows: Sequence[int],
    limits: Sequence[int],
    how: Decoding,
    end: set[int],
) -> list[Beam]:
    """Go on token by token, the likeliest or one by chance. `rows` tell the prompts' chances apart."""
    texts = [Beam([], 0.0) for _ in prompts]
    going = list(range(len(prompts)))  # whose sequences the reader's are
    logits = reader.read(prompts)
    while True:
        histories = ([*prompts[i], *texts[i].ids] for i in going)
        logits = discourage(logits, histories, how.repetition_penalty, how.no_repeat_ngram)
        if how.by_chance:
            places = [len(texts[i].ids) for i in going]
            chance = uniform(how.seed, "generate", np.array([rows[i] for i in going]), np.array(places))
            chosen = draw(logits, chance, how.temperature or 1.0, how.top_k, how.top_p)
        else:
            chosen = logits.argmax(-1).tolist()
        for i, token in zip(going, chosen, strict=True):
            texts[i].ended = token in end
            texts[i].ids += [] if texts[i].ended else [token]
        stay = [k for k, i in enumerate(going) if not texts[i].ended and len(texts[i].ids) < limits[i]]
        going = [going[k] for k in stay]
        if not going:
            return texts
        reader.select(stay)
        logits = reader.read([texts[i].ids[-1:] for i in going])


def search_on(
    reader: Reader, prompts: Sequence[list[int]], limits: Sequence[int], how: Decoding, end: set[int]
) -> list[Beam]:
    """Look for the likeliest texts with beams."""
    searches = [Search(how.beams, limit, how.length_penalty, end) for limit in limits]
    logits = reader.read(prompts)
    while True:
        histories = ([*p, *beam.ids] for p, s in zip(prompts, searches, strict=True) for beam in s.beams)
        scores = discourage(logits.log_softmax(-1), histories, how.repetition_penalty, how.no_repeat_ngram)
        rows: list[int] = []
        first = 0
        for search in searches:
            if count := len(search.beams):
                rows += [first + origin for origin in search.step(scores[first : first + count])]
                first += count
        if not rows:
            return [search.whole[0] for search in searches]
        reader.select(rows)
        logits = reader.read([beam.ids[-1:] for search in searches for beam in search.beams])


@dataclass
class Writer:
    """A language model and its tokenizer, ready to write."""

    model: Model
    device: torch.device

    @classmethod
    def load(cls, reference: str | Path, device: str | None = None, partial: bool = False) -> Writer:
        """From a run folder or a model folder."""
        family, content = read_config(find_folder(reference))
        objective = content.get("pretune", {}).get("objective")
        trained = [part.name for part in parse_objective(objective).objectives] if objective else []
        if "lm" not in trained and frozenset({"lm"}) not in family.classes:
            raise PretuneError(f"{reference}: this {family.name} was not trained to write; pretrain one with lm")
        model = load_model(reference, parse_objective("lm"), partial=partial)
        chosen = choose_device(device)
        model.root.to(chosen).eval()
        return cls(model, chosen)

    def encode(self, prompt: str) -> list[int]:
        """Ids of a beginning, with what the family has before a text. Without any, it begins as documents do."""
        tokenizer, template = self.model.need_tokenizer(), self.model.family.template
        ids = [tokenizer.role(role) for role in template.single[: template.single.index("A")]]
        ids += tokenizer.encode(prompt)
        between = [role for role in template.for_documents.single if role != "A"]
        if not ids and not between:
            raise PretuneError(
                f"an empty prompt: {self.model.family.name} has nothing to begin with; give it a few words"
            )
        ids = ids or [tokenizer.role(between[-1])]
        longest = self.model.backbone.longest
        if longest is not None and len(ids) >= longest:
            raise PretuneError(
                f"a prompt of {len(ids)} tokens leaves no room to write: the model has {longest} positions; shorten it"
            )
        return ids

    def write(self, prompts: Sequence[str], how: Decoding) -> list[dict[str, Any]]:
        """Each prompt with what follows, in order, whatever the batching."""
        tokenizer = self.model.need_tokenizer()
        ids = [self.encode(prompt) for prompt in prompts]
        end = {tokenizer.role("end")} if tokenizer.has("end") else set()
        texts = self.write_ids(ids, how, end)
        return [self.describe(*row) for row in zip(prompts, ids, texts, strict=True)]

    def write_ids(self, prompts: Sequence[list[int]], how: Decoding, end: set[int]) -> list[Beam]:
        """What follows each prompt, until one of the `end` tokens."""
        longest = self.model.backbone.longest or 1 << 30
        limits = [min(how.tokens, longest - len(prompt)) for prompt in prompts]
        order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
        size = max(1, ROWS // how.beams)
        if self.device.type == "cpu" and min(size, len(prompts)) * how.beams > FEW:
            store_by_columns(self.model.root)
        texts: dict[int, Beam] = {}
        for rows in (order[start : start + size] for start in range(0, len(order), size)):
            mine, room = [prompts[row] for row in rows], [limits[row] for row in rows]
            with torch.inference_mode():
                reader = Reader(self.model, len(rows), max(map(lambda a, b: len(a) + b, mine, room)))
                if how.beams > 1:
                    found = search_on(reader, mine, room, how, end)
                else:
                    found = write_on(reader, mine, rows, room, how, end)
            texts |= dict(zip(rows, found, strict=True))
        return [texts[row] for row in range(len(prompts))]

    def describe(self, prompt: str, ids: list[int], text: Beam) -> dict[str, Any]:
        """What there is to say of a text."""
        tokenizer = self.model.need_tokenizer()
        whole, before = tokenizer.decode([*ids, *text.ids]), tokenizer.decode(ids)
        return {
            "prompt": prompt,
            "text": whole,
            "continuation": whole.removeprefix(before),
            "tokens": len(text.ids),
            "ended": text.ended,
        }


def store_by_columns(root: nn.Module) -> None:
    """Store matrices column by column; shapes and values stay. A CPU multiplies some rows with them faster so."""
    for parameter in root.parameters():
        if parameter.dim() == 2 and parameter.is_contiguous():
            parameter.data = parameter.data.t().contiguous().t()
