"""Writing on: what a language model makes of a beginning."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pretune.inference.finite_check import checked
from pretune.inference.generation.beam_search import Beam, Search, candidates
from pretune.inference.generation.sampling import Allowed, discourage, draw, restrict
from pretune.inference.generation.stop_strings import Ended, Pieces, cut, ends_at
from pretune.models.hf_config import read_config
from pretune.models.loading import load_model
from pretune.models.model import Model
from pretune.models.references import find_folder
from pretune.nn.attention.kv_cache import Cache
from pretune.nn.attention.patterns import causal
from pretune.objectives import parse_objective
from pretune.packed import Packed, pack
from pretune.runtime.devices import choose_device
from pretune.runtime.errors import PretuneError
from pretune.runtime.randomness import uniform
from pretune.text.tokenizers.token_trie import Trie

Array = np.ndarray[Any, np.dtype[Any]]
ROWS = 32, 512  # sequences read at once: by a CPU, and by a GPU at most
SLOTS = 1 << 15  # of all sequences that a GPU reads at once; so much, and not more, is kept of them
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
    stop: tuple[str, ...] = ()  # strings, before the first of which a text ends
    choices: tuple[str, ...] = ()  # the texts that may be written; (): any

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
        for name in ("stop", "choices"):
            if any(not text.strip(" ") for text in getattr(self, name)):
                raise PretuneError(
                    f"{name}: an empty text among {', '.join(map(repr, getattr(self, name)))}; leave it out"
                )
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
        """The next tokens of every sequence → (sequences, vocabulary) logits after the last of them."""
        tokens = self.backbone.embed.tokens
        lengths = np.array([len(bit) for bit in ids])
        first = np.cumsum(lengths) - lengths
        positions = np.arange(lengths.sum()) + np.repeat(self.cache.used - first, lengths)
        packed = pack(np.concatenate([np.asarray(bit) for bit in ids]), lengths, positions=positions, pattern=causal)
        states = self.backbone(*self.source, packed.to(tokens.device), carry=self.cache).last
        last = states[torch.from_numpy(first + lengths - 1).to(states.device)]
        return checked(self.head(last, tokens)[:, : self.vocabulary].float())

    def select(self, rows: Sequence[int]) -> None:
        """Sequence i goes on from what sequence rows[i] is."""
        if list(rows) != list(range(len(self.cache.used))):
            self.cache.select(np.array(rows, dtype=np.int64))


def together(slots: Sequence[int], beams: int, device: torch.device) -> Iterator[list[int]]:
    """Rows that are read at once, the longest first: as many as fit, with so many `slots` and `beams` each."""
    order = sorted(range(len(slots)), key=lambda row: -slots[row])
    few, many = ROWS
    while order:
        most = few if device.type == "cpu" else max(few, min(many, SLOTS // slots[order[0]]))
        count = max(1, most // beams)
        yield order[:count]
        order = order[count:]


def write_on(
    reader: Reader,
    prompts: Sequence[list[int]],
    rows: Sequence[int],
    limits: Sequence[int],
    how: Decoding,
    end: set[int],
    allowed: Allowed | None = None,
    ended: Ended | None = None,
) -> list[Beam]:
    """Go on token by token, the likeliest or one by chance. `rows` tell the prompts' chances apart.

    `allowed` says which tokens may follow on those that were written, `ended` whether these are a whole text.
    """
    *_, texts = write_steps(reader, prompts, rows, limits, how, end, allowed, ended)
    return texts


def write_steps(
    reader: Reader,
    prompts: Sequence[list[int]],
    rows: Sequence[int],
    limits: Sequence[int],
    how: Decoding,
    end: set[int],
    allowed: Allowed | None = None,
    ended: Ended | None = None,
) -> Iterator[list[Beam]]:
    """The texts as far as they are written, after each token."""
    texts = [Beam([], 0.0) for _ in prompts]
    going = list(range(len(prompts)))  # whose sequences the reader's are
    logits = reader.read(prompts)
    while True:
        histories = ([*prompts[i], *texts[i].ids] for i in going)
        logits = discourage(logits, histories, how.repetition_penalty, how.no_repeat_ngram)
        logits = restrict(logits, (texts[i].ids for i in going), allowed)
        if how.by_chance:
            places = [len(texts[i].ids) for i in going]
            chance = uniform(how.seed, "generate", np.array([rows[i] for i in going]), np.array(places))
            chosen = draw(logits, chance, how.temperature or 1.0, how.top_k, how.top_p)
        else:
            chosen = logits.argmax(-1).tolist()
        for i, token in zip(going, chosen, strict=True):
            last = token in end
            texts[i].ids += [] if last else [token]
            texts[i].ended = last or (ended is not None and ended(texts[i].ids))
        stay = [k for k, i in enumerate(going) if not texts[i].ended and len(texts[i].ids) < limits[i]]
        going = [going[k] for k in stay]
        yield texts
        if not going:
            return
        reader.select(stay)
        logits = reader.read([texts[i].ids[-1:] for i in going])


def search_on(
    reader: Reader,
    prompts: Sequence[list[int]],
    limits: Sequence[int],
    how: Decoding,
    end: set[int],
    allowed: Allowed | None = None,
    ended: Ended | None = None,
) -> list[Beam]:
    """Look for the likeliest texts with beams."""
    searches = [Search(how.beams, limit, how.length_penalty, end, ended=ended) for limit in limits]
    logits = reader.read(prompts)
    while True:
        histories = ([*p, *beam.ids] for p, s in zip(prompts, searches, strict=True) for beam in s.beams)
        scores = discourage(logits.log_softmax(-1), histories, how.repetition_penalty, how.no_repeat_ngram)
        scores = restrict(scores, (beam.ids for search in searches for beam in search.beams), allowed)
        # The few best of each beam are chosen where the model is: a whole vocabulary takes long on its way to the host.
        best, tokens = (part.cpu() for part in scores.topk(min(candidates(how.beams, end), scores.shape[1])))
        rows: list[int] = []
        first = 0
        for search in searches:
            if count := len(search.beams):
                rows += [
                    first + origin for origin in search.step(best[first : first + count], tokens[first : first + count])
                ]
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
        if family.template.target:
            raise PretuneError(f"{reference}: this {family.name} writes from a text and not on; use `pretune generate`")
        trained = [part.name for part in parse_objective(objective).objectives] if objective else []
        if "lm" not in trained and frozenset({"lm"}) not in family.classes:
            raise PretuneError(f"{reference}: this {family.name} was not trained to write; pretrain one with lm")
        model = load_model(reference, parse_objective("lm"), partial=partial)
        model.need_trained("lm", reference, "pretrain it with lm first")
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
        prompts = [prompt.rstrip(" ") for prompt in prompts] if how.choices else prompts
        ids = [self.encode(prompt) for prompt in prompts]
        texts = self.write_ids(ids, how, self.ends)
        return [self.describe(*row, how) for row in zip(prompts, ids, texts, strict=True)]

    @torch.inference_mode()
    def stream(self, prompt: str, how: Decoding, row: int = 0) -> Generator[str, None, dict[str, Any]]:
        """What follows a prompt, piece by piece while it is written; in the end, what `write` says of prompt number `row`."""
        check_streamed(how)
        tokenizer = self.model.need_tokenizer()
        prompt = prompt.rstrip(" ") if how.choices else prompt
        ids = self.encode(prompt)
        before, pieces = tokenizer.decode(ids), Pieces(how.stop)
        how, allowed, (limit,) = self.plan([ids], how)
        reader = Reader(self.model, 1, len(ids) + limit)
        steps = write_steps(reader, [ids], [row], [limit], how, self.ends, allowed, ends_at(how.stop, tokenizer))
        for (text,) in steps:
            whole = text.ended or len(text.ids) == limit
            yield pieces.grow(tokenizer.decode([*ids, *text.ids]).removeprefix(before), whole)
        return self.describe(prompt, ids, text, how)

    @property
    def ends(self) -> set[int]:
        """Tokens that end a text."""
        tokenizer = self.model.need_tokenizer()
        return {tokenizer.role("end")} if tokenizer.has("end") else set()

    def plan(self, prompts: Sequence[list[int]], how: Decoding) -> tuple[Decoding, Allowed | None, list[int]]:
        """How to write on from some prompts, which tokens may follow, and how many there may be."""
        longest = self.model.backbone.longest or 1 << 30
        if not how.choices:
            return how, None, [min(how.tokens, longest - len(prompt)) for prompt in prompts]
        tokenizer = self.model.need_tokenizer()
        spelled = {choice: tokenizer.encode(f" {choice}") for choice in how.choices}
        if not self.ends:
            raise PretuneError(
                "choices: this tokenizer has no token that ends a text, so that none of them is ever whole"
            )
        for choice, ids in spelled.items():
            if not ids or set(ids) & {*self.ends, tokenizer.roles.get("unknown", -1)}:
                raise PretuneError(f"choice {choice!r}: this tokenizer cannot spell it; take another word")
        trie = Trie([*ids, *self.ends] for ids in spelled.values())
        if max(map(len, prompts)) + trie.longest > longest:
            raise PretuneError(
                f"a prompt of {max(map(len, prompts))} tokens leaves no room for all choices: the model has {longest} "
                "positions; shorten it"
            )
        return replace(how, tokens=trie.longest), trie.after, [trie.longest] * len(prompts)

    def write_ids(self, prompts: Sequence[list[int]], how: Decoding, end: set[int]) -> list[Beam]:
        """What follows each prompt, until one of the `end` tokens."""
        how, allowed, limits = self.plan(prompts, how)
        ended = ends_at(how.stop, self.model.need_tokenizer())
        if self.device.type == "cpu" and min(ROWS[0], len(prompts) * how.beams) > FEW:
            store_by_columns(self.model.root)
        texts: dict[int, Beam] = {}
        slots = [len(prompt) + limit for prompt, limit in zip(prompts, limits, strict=True)]
        for rows in together(slots, how.beams, self.device):
            mine, room = [prompts[row] for row in rows], [limits[row] for row in rows]
            with torch.inference_mode():
                reader = Reader(self.model, len(rows), slots[rows[0]])
                if how.beams > 1:
                    found = search_on(reader, mine, room, how, end, allowed, ended)
                else:
                    found = write_on(reader, mine, rows, room, how, end, allowed, ended)
            texts |= dict(zip(rows, found, strict=True))
        return [texts[row] for row in range(len(prompts))]

    def describe(self, prompt: str, ids: list[int], text: Beam, how: Decoding) -> dict[str, Any]:
        """What there is to say of a text."""
        tokenizer = self.model.need_tokenizer()
        whole = tokenizer.decode([*ids, *text.ids])
        added = whole.removeprefix(tokenizer.decode(ids))
        kept = cut(added, how.stop)
        return {
            "prompt": prompt,
            "text": whole[: len(whole) - len(added) + len(kept)],
            "continuation": kept,
            "tokens": len(text.ids),
            "ended": text.ended,
        }


def check_streamed(how: Decoding) -> None:
    """Refuse to stream what is known only in the end."""
    if how.beams > 1:
        raise PretuneError("beams know their text in the end alone; stream without them")


def store_by_columns(root: nn.Module) -> None:
    """Store matrices column by column; shapes and values stay. A CPU multiplies some rows with them faster so."""
    for parameter in root.parameters():
        if parameter.dim() == 2 and parameter.is_contiguous():
            parameter.data = parameter.data.t().contiguous().t()
