"""A tokenizer: Hugging Face `tokenizers` underneath, with roles and word starts on top.

Roles are what objectives and families speak of (start, separator, mask …); strings such as [CLS] or </s> stay here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain, count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers

from pretune.atomic import write_bytes, write_json
from pretune.boxed import boxed_folder, boxed_names
from pretune.errors import PretuneError
from pretune.text.remembered import remember
from pretune.text.spelling import spell_vocabulary
from pretune.text.words import WordStarts

if TYPE_CHECKING:
    from pretune.text.sequences import Template

# role → the names it has in Hugging Face's tokenizer_config.json, the first that is there counts
ROLE_NAMES = {
    "padding": ("pad_token",),
    "unknown": ("unk_token",),
    "start": ("cls_token", "bos_token"),
    "separator": ("sep_token", "eos_token"),
    "mask": ("mask_token",),
    "end": ("eos_token", "sep_token"),
}
# where a vocabulary comes without a configuration, the published spellings tell
SPELLINGS = {
    "pad_token": ("[PAD]", "<pad>"),
    "unk_token": ("[UNK]", "<unk>"),
    "cls_token": ("[CLS]", "<cls>", "<s>"),  # XLNet has both of the last
    "sep_token": ("[SEP]", "<sep>"),
    "bos_token": ("<s>", "<|endoftext|>"),
    "eos_token": ("</s>", "<|endoftext|>"),
    "mask_token": ("[MASK]", "<mask>", "<special1>"),
}
TRAINED_SPECIALS = {
    "padding": "[PAD]",
    "unknown": "[UNK]",
    "start": "[CLS]",
    "separator": "[SEP]",
    "mask": "[MASK]",
    "end": "[SEP]",
}
SEPARATOR = "<sep>"  # what is added to a vocabulary without a separator
JOINT, CUT = "\ue000\ue0f0\ue000", "\ue000\ue0f1\ue000"  # private characters: between parts, inside spelled specials
SOME = 1000  # texts tokenized at once where places are kept, which take memory
TARGET = "target_tokenizer"  # the folder inside, of the tokenizer of second texts
CHARACTERS = "max_characters_per_token"  # as ELMo's options.json calls it
SENTINELS = ("<extra_id_{}>", "▁<extra_id_{}>")  # T5's tokens, mT5's pieces
LANGUAGE = re.compile(r"<lang:([\w-]+)>|([a-z]{2,3}_[A-Z]{2})")  # our own, mBART's

Ids = np.ndarray[tuple[int], np.dtype[Any]]
Array = np.ndarray[Any, np.dtype[Any]]


class Tokenizer:
    """Text to ids and back.

    >>> tokenizer = Tokenizer.load("bert-base-uncased/")  # doctest: +SKIP
    >>> tokenizer.decode(tokenizer.encode("Hello, world!"))  # doctest: +SKIP
    'hello, world!'
    """

    def __init__(self, backend: tokenizers.Tokenizer, roles: Mapping[str, str], characters: int = 0) -> None:
        """`roles` maps role names to token strings of the vocabulary; `characters` is how many symbols of bytes spell a
        word for models that read words by their letters (ELMo); 0: none."""
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.characters = characters
        self.role_tokens = dict(roles)
        self.roles: dict[str, int] = {}
        for role, token in roles.items():
            identity = backend.token_to_id(token)
            if identity is None:
                raise PretuneError(f"the tokenizer's {role} token {token!r} is not in its vocabulary")
            self.roles[role] = identity
        self.report: dict[str, Any] = {}
        self._target: Tokenizer | None = None

    @property
    def target(self) -> Tokenizer:
        """The tokenizer of second texts, of translations, where they have another vocabulary; else itself."""
        return self._target or self

    def with_target(self, target: Tokenizer) -> Tokenizer:
        """The same, with another vocabulary for second texts, whose special tokens have the same numbers."""
        if target.roles != self.roles:
            raise PretuneError("the tokenizers of two sides must number their special tokens alike; train both here")
        self._target = target
        return self

    def with_separator(self) -> Tokenizer:
        """Return a copy with a token added as separator, which is the end of texts too where the vocabulary has none.

        >>> tokenizer.with_separator().size - tokenizer.size  # doctest: +SKIP
        1
        """
        backend = tokenizers.Tokenizer.from_str(self.backend.to_str())
        backend.add_special_tokens([tokenizers.AddedToken(SEPARATOR, special=True, normalized=False)])
        roles = {"end": SEPARATOR} | self.role_tokens | {"separator": SEPARATOR}
        return Tokenizer(backend, roles, self.characters)

    # -- the vocabulary -----------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Number of ids, added tokens included; published vocabularies with a token twice have gaps."""
        return len(self.vocabulary)

    @cached_property
    def vocabulary(self) -> list[str]:
        """Token strings by id; an id without a token is an empty string."""
        vocabulary = self.backend.get_vocab(with_added_tokens=True)
        tokens = [""] * (max(vocabulary.values()) + 1)
        for token, identity in vocabulary.items():
            tokens[identity] = token
        return tokens

    @cached_property
    def specials(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """(size,) True for ids that are roles or otherwise special: never masked, never drawn at random."""
        table = np.zeros(self.size, dtype=bool)
        table[list(self.roles.values())] = True
        for identity, token in self.backend.get_added_tokens_decoder().items():
            table[identity] |= token.special
        return table

    @cached_property
    def spelling(self) -> Array:
        """(size, characters) the symbols of every token."""
        return spell_vocabulary(self.vocabulary, self.roles, self.characters)

    @property
    def kind(self) -> str:
        """The model underneath: WordPiece, BPE, Unigram or WordLevel."""
        return type(self.backend.model).__name__

    @cached_property
    def digest(self) -> str:
        """A fingerprint of everything that decides what ids a text gets."""
        content = json.loads(self.backend.to_str())
        del content["post_processor"]  # what others put around texts: a model's template, and not the text's own
        everything = [content, self.role_tokens, *([self._target.digest] if self._target else [])]
        return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()

    # -- roles --------------------------------------------------------------------------------------------------

    def role(self, name: str) -> int:
        """The id that plays a role; a missing one is refused by its name.

        >>> tokenizer.role("mask")  # doctest: +SKIP
        103
        """
        if name not in self.roles:
            plain = sorted(role for role in self.roles if not role.startswith("sentinel "))
            sentinels = [f"{len(self.roles) - len(plain)} sentinels"] if len(self.roles) > len(plain) else []
            has = ", ".join(plain + sentinels) or "none"
            raise PretuneError(f"this tokenizer has no {name!r} token (it has: {has}); train or choose one that has it")
        return self.roles[name]

    def has(self, name: str) -> bool:
        """Whether a role is filled."""
        return name in self.roles

    # -- text and ids -------------------------------------------------------------------------------------------

    def encode(self, text: str, *, marked: bool = False) -> list[int]:
        """Ids of a text, without start or separator. With `marked`, spelled-out roles such as [MASK] count as such."""
        if marked:
            return self._marked.encode(text, add_special_tokens=False).ids
        ids, _ = self.encode_parts([[text]])
        return [int(i) for i in ids]

    def encode_many(self, texts: Sequence[str]) -> tuple[Ids, Ids]:
        """Ids of many texts end to end, and the number of ids of each."""
        return remember(self.digest, texts, lambda: self.encode_parts([[text] for text in texts]))

    def encode_parts(self, documents: Sequence[Sequence[str]]) -> tuple[Ids, Ids]:
        """Ids of texts that come in parts (sentences), end to end, and the number of ids of each part.

        Each part gets the ids it would get alone. Handing the library whole documents, with a joint token between the
        parts, is a third faster than handing it the parts.
        """
        joined = [JOINT.join(map(self._tame, parts)) for parts in documents if parts]
        joint, cut = (self._jointed.token_to_id(token) or 0 for token in (JOINT, CUT))
        ids: list[list[int]] = []
        for encoding in self._jointed.encode_batch_fast(joined, add_special_tokens=False):  # type: ignore[arg-type]
            ids += (encoding.ids, [joint])
        flat = np.fromiter(chain.from_iterable(ids), dtype=np.int32, count=sum(map(len, ids)))
        if self._spelled is not None:
            flat = flat[flat != cut]
        is_joint = flat == joint
        lengths = np.diff(is_joint.nonzero()[0], prepend=-1) - 1
        return flat[~is_joint].astype(self.dtype), lengths

    def places(self, parts: Sequence[str]) -> Array:
        """(n, 2) where the ids of a text in parts, as `encode_parts` has them, begin and end in it, in characters."""
        pieces: list[str] = []
        origin: list[Ids] = []
        start = 0
        for part in parts:
            tamed, places = self._trace(part)
            pieces.append(tamed)
            origin += [places[:-1] + start, np.full(len(JOINT), start + len(part))]
            start += len(part)
        encoding = self._jointed.encode(JOINT.join(pieces), add_special_tokens=False)
        ours = [self._jointed.token_to_id(token) or 0 for token in (JOINT, CUT)]
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)[~np.isin(encoding.ids, ours)]
        found: Array = np.concatenate([*origin, [start]])[offsets]
        return found

    def _trace(self, text: str) -> tuple[str, Ids]:
        """What `_tame` makes of a text, and which of its characters each one was; the last is its end."""
        origin: Ids = np.arange(len(text) + 1)
        for joint in (JOINT, CUT):
            edits = [(match.start(), match.end(), " ") for match in re.finditer(joint, text)]
            text, origin = edited(text, origin, edits)
        if self._spelled is not None:
            cuts = [match.start() + 1 for match in self._spelled.finditer(text)]
            text, origin = edited(text, origin, [(cut, cut, CUT) for cut in cuts])
        return text, origin

    def encode_with_offsets(self, texts: Sequence[str]) -> tuple[Ids, Ids, Ids]:
        """As `encode_many`, and where each id begins and ends in its text, in characters, (n, 2).

        A mark of a space has the place of that space; what a character becomes has all of its place.
        """
        ours = [self._jointed.token_to_id(token) or 0 for token in (JOINT, CUT)]
        empty = np.empty((0, 2), dtype=np.int64)
        ids, lengths, offsets = [empty[:, 0]], list[int](), [empty]
        for first in range(0, len(texts), SOME):
            traced = [self._trace(text) for text in texts[first : first + SOME]]
            encodings = self._jointed.encode_batch([text for text, _ in traced], add_special_tokens=False)
            found = np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), dtype=np.int64)
            places = np.array([place for encoding in encodings for place in encoding.offsets], dtype=np.int64).reshape(
                -1, 2
            )
            ends = np.cumsum([len(encoding) for encoding in encodings])
            for (text, origin), stop, encoding in zip(traced, ends, encodings, strict=True):
                if len(origin) != len(text) + 1 or origin[-1] != len(text):  # something was put in or taken out
                    own = slice(stop - len(encoding), stop)
                    places[own] = origin[places[own]]
            real = ~np.isin(found, ours)
            ids.append(found[real])
            offsets.append(places[real])
            kept = np.concatenate([[0], np.cumsum(real)])[np.concatenate([[0], ends])]
            lengths += np.diff(kept).tolist()
        return np.concatenate(ids).astype(self.dtype), np.array(lengths, dtype=np.int64), np.concatenate(offsets)

    def _tame(self, text: str) -> str:
        """The text without our joints, and cut inside anything the model itself would take for a special token."""
        if JOINT in text or CUT in text:
            text = text.replace(JOINT, " ").replace(CUT, " ")
        if self._spelled is not None:
            text = self._spelled.sub(lambda match: f"{match[0][0]}{CUT}{match[0][1:]}", text)
        return text

    @cached_property
    def _spelled(self) -> re.Pattern[str] | None:
        """Unigram and word-level models list special tokens among their pieces: text must not match."""
        if self.kind not in ("Unigram", "WordLevel"):
            return None
        specials = [re.escape(self.vocabulary[i].removeprefix("▁")) for i in self.specials.nonzero()[0]]
        return re.compile("|".join(specials)) if specials else None

    @cached_property
    def _jointed(self) -> tokenizers.Tokenizer:
        jointed = tokenizers.Tokenizer.from_str(self.backend.to_str())
        jointed.encode_special_tokens = True  # text that happens to spell "[MASK]" is text
        jointed.add_tokens([tokenizers.AddedToken(token, normalized=False) for token in (JOINT, CUT)])
        return jointed

    def decode(self, ids: Iterable[int], *, specials: bool = False) -> str:
        """The text of some ids; special tokens are left out unless asked for."""
        return self.backend.decode([int(i) for i in ids], skip_special_tokens=not specials)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The token strings of some ids."""
        return [self.vocabulary[int(i)] for i in ids]

    def word_starts(self, ids: Ids) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """(n,) True where an id begins a word; the first always does."""
        return self._words(ids)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The smallest type that holds the ids."""
        return np.dtype(np.uint16 if self.size <= 1 << 16 else np.uint32)

    @cached_property
    def _words(self) -> WordStarts:
        return WordStarts(self.backend, self.vocabulary, self.specials, self.roles.get("unknown"))

    @cached_property
    def _marked(self) -> tokenizers.Tokenizer:
        marked = tokenizers.Tokenizer.from_str(self.backend.to_str())
        marked.encode_special_tokens = False
        return marked

    # -- files --------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path, template: Template | None = None) -> None:
        """Write tokenizer.json and tokenizer_config.json, as `transformers.PreTrainedTokenizerFast` loads them.

        With the `template` of a model, other programs put around texts what that model expects.
        """
        from pretune.text.tokenizer_files import with_template

        folder = Path(folder)
        backend, config = self.backend, self._config()
        if template is not None:
            backend = with_template(backend, self.role_tokens, template)
            segments = ["token_type_ids"] if template.segments else []
            config["model_input_names"] = ["input_ids", *segments, "attention_mask"]
            if template.last:  # the last token is looked for at the end
                config["padding_side"] = "left"
        write_bytes(folder / "tokenizer.json", backend.to_str(pretty=True).encode())
        write_json(folder / "tokenizer_config.json", config)
        if self._target is not None:
            self._target.save(folder / TARGET, template)

    def _config(self) -> dict[str, Any]:
        config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        for role, names in ROLE_NAMES.items():
            if role in self.role_tokens:
                config.setdefault(names[0], self.role_tokens[role])
        if self.characters:
            config[CHARACTERS] = self.characters
        others = [token for role, token in self.role_tokens.items() if role not in ROLE_NAMES]
        if others:
            config["additional_special_tokens"] = others
        return config

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Read a tokenizer from a folder or one of its files, in any of the usual layouts; or that of a model of the box.

        tokenizer.json; vocab.txt; vocab.json + merges.txt; a sentencepiece .model.
        """
        from pretune.text.tokenizer_files import load_backend

        folder = Path(path)
        if not folder.exists() and str(path) in boxed_names():
            folder = boxed_folder(str(path))
        backend, config = load_backend(folder)
        made = cls(backend, find_roles(backend, config), int(config.get(CHARACTERS, 0)))
        return made.with_target(cls.load(folder / TARGET)) if (folder / TARGET).is_dir() else made

    @classmethod
    def from_state(cls, state: str) -> Tokenizer:
        """The inverse of `state`, for handing a tokenizer to another process."""
        content = json.loads(state)
        return cls(tokenizers.Tokenizer.from_str(content["backend"]), content["roles"], content["characters"])

    def state(self) -> str:
        """Everything of the tokenizer as one JSON string."""
        return json.dumps({"backend": self.backend.to_str(), "roles": self.role_tokens, "characters": self.characters})

    def describe(self) -> dict[str, Any]:
        """What there is to say about it, for reports."""
        return self.report or {"kind": self.kind, "size": self.size, "roles": sorted(self.roles)}


def edited(text: str, origin: Ids, edits: Iterable[tuple[int, int, str]]) -> tuple[str, Ids]:
    """A text with other characters from start to end in some places, and where each of its characters is from.

    >>> edited("abcd", np.arange(5), [(1, 3, "-"), (4, 4, "!")])
    ('a-d!', array([0, 1, 3, 4, 4]))
    """
    pieces, origins, done = list[str](), list[Ids](), 0
    for start, end, put in edits:
        pieces += [text[done:start], put]
        origins += [origin[done:start], np.repeat(origin[start], len(put))]
        done = end
    return "".join([*pieces, text[done:]]), np.concatenate([*origins, origin[done:]])


def find_roles(backend: tokenizers.Tokenizer, config: Mapping[str, Any]) -> dict[str, str]:
    """Which token plays which role, from tokenizer_config.json's names or the published spellings."""
    named: dict[str, str] = {}
    for name, spellings in SPELLINGS.items():
        value = config.get(name)
        if isinstance(value, Mapping):
            value = value.get("content")
        if isinstance(value, str) and backend.token_to_id(value) is not None:
            named[name] = value
        elif not any(key in config for key in SPELLINGS):  # no configuration: go by spelling
            token = next((s for s in spellings if backend.token_to_id(s) is not None), None)
            if token is not None:
                named[name] = token
    if "bos_token" in named and named.get("cls_token") == named.get("sep_token"):
        named.pop("cls_token", None)  # XLM: both are </s>, but texts start with <s>
    roles = {}
    for role, names in ROLE_NAMES.items():
        token = next((named[name] for name in names if name in named), None)
        if token is not None:
            roles[role] = token
    spelled = next((s for s in SENTINELS if backend.token_to_id(s.format(0)) is not None), "")
    for number in takewhile(lambda n: spelled and backend.token_to_id(spelled.format(n)) is not None, count()):
        roles[f"sentinel {number}"] = spelled.format(number)
    for token in sorted(t.content for t in backend.get_added_tokens_decoder().values()):
        if match := LANGUAGE.fullmatch(token):
            roles[f"language {match[1] or match[2]}"] = token
    return roles
