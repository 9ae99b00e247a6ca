"""A tokenizer: Hugging Face `tokenizers` underneath, with roles and word starts on top.

Roles are what objectives and families speak of (start, separator, mask …); strings such as [CLS] or </s> stay here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import processors

from pretune.atomic import write_bytes, write_json
from pretune.errors import PretuneError
from pretune.text.words import WordStarts

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
    "cls_token": ("[CLS]", "<s>", "<cls>"),
    "sep_token": ("[SEP]", "<sep>"),
    "bos_token": ("<s>", "<|endoftext|>"),
    "eos_token": ("</s>", "<|endoftext|>"),
    "mask_token": ("[MASK]", "<mask>"),
}
TRAINED_SPECIALS = {
    "padding": "[PAD]",
    "unknown": "[UNK]",
    "start": "[CLS]",
    "separator": "[SEP]",
    "mask": "[MASK]",
    "end": "[SEP]",
}
JOINT, CUT = "\ue000\ue0f0\ue000", "\ue000\ue0f1\ue000"  # private characters: between parts, inside spelled specials
SENTINEL = re.compile(r"<extra_id_(\d+)>")
LANGUAGE = re.compile(r"<lang:([\w-]+)>")

Ids = np.ndarray[tuple[int], np.dtype[Any]]


class Tokenizer:
    """Text to ids and back.

    >>> tokenizer = Tokenizer.load("bert-base-uncased/")  # doctest: +SKIP
    >>> tokenizer.decode(tokenizer.encode("Hello, world!"))  # doctest: +SKIP
    'hello, world!'
    """

    def __init__(self, backend: tokenizers.Tokenizer, roles: Mapping[str, str]) -> None:
        """`roles` maps role names to token strings of the vocabulary."""
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.role_tokens = dict(roles)
        self.roles: dict[str, int] = {}
        for role, token in roles.items():
            identity = backend.token_to_id(token)
            if identity is None:
                raise PretuneError(f"the tokenizer's {role} token {token!r} is not in its vocabulary")
            self.roles[role] = identity
        self.report: dict[str, Any] = {}

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

    @property
    def kind(self) -> str:
        """The model underneath: WordPiece, BPE, Unigram or WordLevel."""
        return type(self.backend.model).__name__

    @cached_property
    def digest(self) -> str:
        """A fingerprint of everything that decides what ids a text gets; what others put around it does not."""
        content = _bare(self.backend).to_str() + json.dumps(self.role_tokens, sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    # -- roles --------------------------------------------------------------------------------------------------

    def role(self, name: str) -> int:
        """The id that plays a role; a missing one is refused by its name.

        >>> tokenizer.role("mask")  # doctest: +SKIP
        103
        """
        if name not in self.roles:
            has = ", ".join(sorted(self.roles)) or "none"
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
        return self.encode_parts([[text] for text in texts])

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

    def _tame(self, text: str) -> str:
        """The text without our joints, and cut inside anything the model itself would take for a special token."""
        if JOINT in text or CUT in text:
            text = text.replace(JOINT, " ").replace(CUT, " ")
        if self._spelled is not None:
            text = self._spelled.sub(lambda match: f"{match[0][0]}{CUT}{match[0][1:]}", text)
        return text

    @cached_property
    def _spelled(self) -> re.Pattern[str] | None:
        """Unigram models list special tokens among their pieces, with the best score there is: text must not match."""
        if self.kind != "Unigram":
            return None
        specials = [re.escape(self.vocabulary[i]) for i in self.specials.nonzero()[0]]
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

    def surrounded(self, single: Sequence[str], pair: Sequence[str]) -> Tokenizer:
        """The same, with which other programs put around texts what a template says: roles, and A and B for the texts."""
        both = (*single, *pair)
        if not all(item in "AB" or self.has(item) for item in both):
            return self
        texts = {"A": self.encode("a"), "B": self.encode("b")}
        ids = {item: texts[item] if item in texts else [self.role(item)] for item in both}
        wanted = [[i for item in items for i in ids[item]] for items in (single, both)]
        if [self.backend.encode("a").ids, self.backend.encode("a", "b").ids] == wanted:
            return self
        spelled = {item: f"${item}" if item in texts else self.role_tokens[item] for item in both}
        kinds = [0] * len(single) + [1] * len(pair)
        backend = _bare(self.backend)
        backend.post_processor = processors.TemplateProcessing(
            single=[f"{spelled[item]}:0" for item in single],
            pair=[f"{spelled[item]}:{kind}" for item, kind in zip(both, kinds, strict=True)],
            special_tokens=[(spelled[item], self.role(item)) for item in sorted(set(both) - set(texts))],
        )
        return Tokenizer(backend, self.role_tokens)

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json and tokenizer_config.json, as `transformers.PreTrainedTokenizerFast` loads them."""
        folder = Path(folder)
        write_bytes(folder / "tokenizer.json", self.backend.to_str(pretty=True).encode())
        write_json(folder / "tokenizer_config.json", self._config())

    def _config(self) -> dict[str, Any]:
        config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        for role, names in ROLE_NAMES.items():
            if role in self.role_tokens:
                config.setdefault(names[0], self.role_tokens[role])
        others = [token for role, token in self.role_tokens.items() if role not in ROLE_NAMES]
        if others:
            config["additional_special_tokens"] = others
        return config

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Read a tokenizer from a folder or one of its files, in any of the usual layouts.

        tokenizer.json; vocab.txt; vocab.json + merges.txt; a sentencepiece .model.
        """
        from pretune.text.tokenizer_files import load_backend

        backend, config = load_backend(Path(path))
        return cls(backend, find_roles(backend, config))

    @classmethod
    def from_state(cls, state: str) -> Tokenizer:
        """The inverse of `state`, for handing a tokenizer to another process."""
        content = json.loads(state)
        return cls(tokenizers.Tokenizer.from_str(content["backend"]), content["roles"])

    def state(self) -> str:
        """Everything of the tokenizer as one JSON string."""
        return json.dumps({"backend": self.backend.to_str(), "roles": self.role_tokens})

    def describe(self) -> dict[str, Any]:
        """What there is to say about it, for reports."""
        return self.report or {"kind": self.kind, "size": self.size, "roles": sorted(self.roles)}


def _bare(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A copy that puts nothing around texts."""
    copy = tokenizers.Tokenizer.from_str(backend.to_str())
    copy.post_processor = None  # type: ignore[assignment]
    return copy


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
    roles = {}
    for role, names in ROLE_NAMES.items():
        token = next((named[name] for name in names if name in named), None)
        if token is not None:
            roles[role] = token
    for token in sorted(t.content for t in backend.get_added_tokens_decoder().values()):
        if match := SENTINEL.fullmatch(token):
            roles[f"sentinel {match[1]}"] = token
        elif match := LANGUAGE.fullmatch(token):
            roles[f"language {match[1]}"] = token
    return roles
