"""Define the tokenizer: a Hugging Face `tokenizers` backend with roles of special tokens and word starts.

Objectives and model families refer to special tokens by role (start, separator, mask, …); strings such as [CLS] or </s>
appear only in this package.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain, count, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers.models import BPE, Unigram

from pretune.models.bundled import bundled_folder, bundled_names
from pretune.runtime.arrays import Array
from pretune.runtime.atomic_io import write_bytes, write_json
from pretune.runtime.errors import PretuneError, suggest
from pretune.text.tokenizers.backend import library_errors
from pretune.text.tokenizers.character_ids import encode_vocabulary_characters
from pretune.text.tokenizers.settings import CHARACTERS, SOURCE_LANGUAGE
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.token_cache import cached_tokens
from pretune.text.tokenizers.vocabulary_files import load_backend, special_token_frames, with_template
from pretune.text.tokenizers.word_starts import WordStarts

# role → its names in Hugging Face's tokenizer_config.json, in order of preference
ROLE_NAMES = {
    "padding": ("pad_token",),
    "unknown": ("unk_token",),
    "start": ("cls_token", "bos_token"),
    "separator": ("sep_token", "eos_token"),
    "mask": ("mask_token",),
    "end": ("eos_token", "sep_token"),
}
TRAINED_SPECIALS = {
    "padding": "[PAD]",
    "unknown": "[UNK]",
    "start": "[CLS]",
    "separator": "[SEP]",
    "mask": "[MASK]",
    "end": "[SEP]",
}
# Tokens that tasks add to vocabularies without them, by role; the last one is not in tokenizer_config.json.
ADDED_TOKENS = {"start": "<start>", "separator": "<sep>", "extract": "<extract>"}
PRIVATE = "\ue000\ue0f0"  # private-use characters
JOINT, HIDDEN = f"{PRIVATE}\ue000", f"{PRIVATE}{{}}"  # between parts of a text; in place of special tokens
FAILED = ("the tokenizer", "tokenization of a text failed", "restore the tokenizer files, which may be damaged")
CACHED_WORDS = 1 << 17  # the library remembers the tokens of 10,000 words by default, fewer than a large corpus repeats
SOME = 1000  # texts tokenized at once with offsets, which take memory
TARGET = "target_tokenizer"  # subfolder with the tokenizer of the target side
SENTINELS = ("<extra_id_{}>", "▁<extra_id_{}>")  # T5's tokens, mT5's pieces
LANGUAGE = re.compile(r"<lang:([\w-]+)>|([a-z]{2,3}_[A-Z]{2})")  # language tokens of trained vocabularies, and mBART's

Ids = np.ndarray[tuple[int], np.dtype[Any]]


class Tokenizer:
    """A tokenizer, which maps text to token ids and back, and knows which special tokens have which roles.

    >>> tokenizer = Tokenizer.load("bert-base-uncased/")  # doctest: +SKIP
    >>> tokenizer.decode(tokenizer.encode("Hello, world!"))  # doctest: +SKIP
    'hello, world!'
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        roles: Mapping[str, str],
        characters: int = 0,
        names: Mapping[str, str] | None = None,
    ) -> None:
        """Wrap a tokenizer of the `tokenizers` library (`backend`).

        Parameters
        ----------
        roles
            Token string of each role; all of them must be in the vocabulary.
        characters
            Character ids per word, for models that read words by their characters (ELMo); 0 for all others.
        names
            Special tokens by their published names (bos_token, …); by default they follow from the roles.
        """
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.characters = characters
        self.names = dict(names or {})
        self.role_tokens = dict(roles)
        self.roles: dict[str, int] = {}
        for role, token in roles.items():
            identity = backend.token_to_id(token)
            if identity is None:
                advice = "correct the tokenizer files"
                raise PretuneError(f"the tokenizer's {role} token {token!r} is not in its vocabulary; {advice}")
            self.roles[role] = identity
        self.report: dict[str, Any] = {}
        self._target: Tokenizer | None = None

    @property
    def target(self) -> Tokenizer:
        """Return the tokenizer of target texts, such as translations: the one set by `set_target`, else self."""
        return self._target or self

    def set_target(self, target: Tokenizer) -> Tokenizer:
        """Use the tokenizer `target` for target texts, such as translations; return the tokenizer itself.

        Both tokenizers must have the same special token ids.
        """
        if target.roles != self.roles:
            raise PretuneError("source and target tokenizers have different special token ids; train both with pretune")
        self._target = target
        return self

    def with_added(self, role: str) -> Tokenizer:
        """Return a copy of the tokenizer whose vocabulary has an additional token for a role.

        The role is "start", "separator" or "extract". If the tokenizer has no end token, an added separator is also its
        end token.
        """
        token = ADDED_TOKENS[role]
        backend = tokenizers.Tokenizer.from_str(self.backend.to_str())
        backend.add_special_tokens([tokenizers.AddedToken(token, special=True, normalized=False)])
        end = {"end": token} if role == "separator" else {}
        return Tokenizer(backend, end | self.role_tokens | {role: token}, self.characters)

    # -- the vocabulary -----------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Return the size of the vocabulary, including added tokens and unused ids (gaps in published vocabularies)."""
        return len(self.vocabulary)

    @cached_property
    def vocabulary(self) -> list[str]:
        """Return the token strings by id; an empty string for ids without a token."""
        vocabulary = self.backend.get_vocab(with_added_tokens=True)
        tokens = [""] * (max(vocabulary.values()) + 1)
        for token, identity in vocabulary.items():
            tokens[identity] = token
        return tokens

    @cached_property
    def specials(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return a mask, (size,), of the special tokens, which are never masked and never sampled at random."""
        table = np.zeros(self.size, dtype=bool)
        table[list(self.roles.values())] = True
        for identity, token in self.backend.get_added_tokens_decoder().items():
            table[identity] |= token.special
        return table

    @cached_property
    def token_characters(self) -> Array:
        """Return the character ids of every token of the vocabulary, (size, characters), for models such as ELMo."""
        return encode_vocabulary_characters(self.vocabulary, self.roles, self.characters)

    @property
    def kind(self) -> str:
        """Return the name of the backend's model: WordPiece, BPE, Unigram or WordLevel."""
        return type(self.backend.model).__name__

    @cached_property
    def digest(self) -> str:
        """Return a SHA-256 digest of everything that determines the token ids of a text."""
        content = json.loads(self.backend.to_str())
        del content["post_processor"]  # special tokens around texts, which do not affect the text's own ids
        everything = [content, self.role_tokens, *([self._target.digest] if self._target else [])]
        return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()

    # -- roles --------------------------------------------------------------------------------------------------

    def role(self, name: str) -> int:
        """Return the id of the special token with a role, such as "mask"; raise an error if the tokenizer has none."""
        if name == "language" and name not in self.roles:
            known = sorted(role.removeprefix("language ") for role in self.roles if role.startswith("language "))
            raise PretuneError(
                "the model's inputs contain a language token, but the tokenizer does not define the language; set "
                f"{SOURCE_LANGUAGE} in tokenizer_config.json (languages: {', '.join(known) or 'none'}); "
                "mBART-50, whose inputs begin with the language token, is supported for generation only"
            )
        if name not in self.roles:
            plain = sorted(role for role in self.roles if not role.startswith("sentinel "))
            sentinels = [f"{len(self.roles) - len(plain)} sentinels"] if len(self.roles) > len(plain) else []
            has = ", ".join(plain + sentinels) or "none"
            languages = [role for role in plain if role.startswith("language ")] if name.startswith("language ") else []
            hint = suggest(name, languages, "train or choose a tokenizer that has it")
            raise PretuneError(f"the tokenizer has no {name!r} token (it has: {has}); {hint}")
        return self.roles[name]

    def has_role(self, name: str) -> bool:
        """Return whether the tokenizer has a special token with a role, such as "mask"."""
        return name in self.roles

    # -- text and ids -------------------------------------------------------------------------------------------

    def encode(self, text: str, *, allow_special: bool = False) -> list[int]:
        """Return the token ids of a text, without special tokens around it.

        Strings such as "[MASK]" in the text are plain text unless `allow_special` is True.
        """
        if allow_special:
            with library_errors(*FAILED):
                return self._with_specials.encode(text, add_special_tokens=False).ids
        return [int(i) for i in self.encode_parts([[text]])[0]]

    def encode_many(self, texts: Sequence[str]) -> tuple[Ids, Ids]:
        """Return the token ids of all texts, concatenated, and the number of ids of each text, (texts,)."""
        return cached_tokens(lambda: self.digest, texts, lambda: self.encode_parts([[text] for text in texts]))

    def encode_parts(self, documents: Sequence[Sequence[str]]) -> tuple[Ids, Ids]:
        """Return the token ids of documents that are given in parts (sentences), and the number of ids of each part.

        Both arrays are concatenated over all documents. Each part gets the ids that it would get alone, but encoding
        whole documents at once is a third faster.
        """
        joined = [JOINT.join(map(replace_private, parts)) for parts in documents if parts]
        joint = self._joint
        ids: list[list[int]] = []
        with library_errors(*FAILED):
            encodings = self.plain.encode_batch_fast(joined, add_special_tokens=False)  # type: ignore[arg-type]
        for encoding in encodings:
            ids += (encoding.ids, [joint])
        flat = np.fromiter(chain.from_iterable(ids), dtype=np.int32, count=sum(map(len, ids)))
        is_joint = flat == joint
        lengths = np.diff(is_joint.nonzero()[0], prepend=-1) - 1
        return flat[~is_joint].astype(self.dtype), lengths

    def part_offsets(self, parts: Sequence[str]) -> Array:
        """Return the start and end character of each token of a document, (tokens, 2).

        `parts` are the sentences of the document; characters are counted in the whole document.
        """
        origin: list[Ids] = []
        start = 0
        for part in parts:
            origin += [np.arange(start, start + len(part)), np.full(len(JOINT), start + len(part))]
            start += len(part)
        with library_errors(*FAILED):
            encoding = self.plain.encode(JOINT.join(map(replace_private, parts)), add_special_tokens=False)
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)[np.array(encoding.ids) != self._joint]
        characters: Array = np.concatenate([*origin, [start]])
        return characters[offsets]

    def encode_with_offsets(self, texts: Sequence[str]) -> tuple[Ids, Ids, Ids]:
        """Return the token ids of texts, the number of ids of each text, and the character offsets of each token.

        The offsets, (tokens, 2), are the start and end character of each token in its own text. A space marker has the
        offsets of its space. If a single character is split into several tokens (bytes), each of them has the offsets
        of this character.
        """
        empty = np.empty((0, 2), dtype=np.int64)
        ids, lengths, offsets = [empty[:, 0]], list[int](), [empty]
        for first in range(0, len(texts), SOME):
            some = list(map(replace_private, texts[first : first + SOME]))
            with library_errors(*FAILED):
                encodings = self.plain.encode_batch(some, add_special_tokens=False)
            ids.append(np.fromiter(chain.from_iterable(encoding.ids for encoding in encodings), dtype=np.int64))
            pairs = [pair for encoding in encodings for pair in encoding.offsets]
            offsets.append(np.array(pairs, dtype=np.int64).reshape(-1, 2))
            lengths += map(len, encodings)
        return np.concatenate(ids).astype(self.dtype), np.array(lengths, dtype=np.int64), np.concatenate(offsets)

    @property
    def _joint(self) -> int:
        return self.plain.token_to_id(JOINT) or 0

    @cached_property
    def plain(self) -> tokenizers.Tokenizer:
        """Return a `tokenizers` backend that treats strings such as "[MASK]" in texts as plain text.

        It has one additional token, which separates the sentences of a document.
        """
        with library_errors(*FAILED):
            plain = tokenizers.Tokenizer.from_str(json.dumps(self.without_special_tokens()))
        plain.encode_special_tokens = True
        plain.add_tokens([tokenizers.AddedToken(JOINT, normalized=False)])
        if isinstance(plain.model, BPE | Unigram):  # the other models look words up in their vocabulary
            plain.model._resize_cache(CACHED_WORDS)
        return plain

    def without_special_tokens(self) -> dict[str, Any]:
        """Return the content of a tokenizer.json in which special tokens have names that no text contains.

        A tokenizer with this content treats strings such as "[MASK]" in texts as plain text.
        """
        content: dict[str, Any] = json.loads(self.backend.to_str())
        hidden = {self.vocabulary[i]: HIDDEN.format(i) for i in self.specials.nonzero()[0]}
        model = content["model"]
        if model["type"] == "Unigram":
            model["vocab"] = [[hidden.get(piece, piece), score] for piece, score in model["vocab"]]
        else:
            model["vocab"] = {hidden.get(token, token): number for token, number in model["vocab"].items()}
            model["unk_token"] = hidden.get(model["unk_token"], model["unk_token"])
        if "merges" in model:
            prefix = model["continuing_subword_prefix"] or ""
            pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
            model["merges"] = [
                (left, right)
                for left, right in pairs
                if not hidden.keys() & {left, right, left + right.removeprefix(prefix)}
            ]
        for token in content["added_tokens"]:
            token["content"] = hidden.get(token["content"], token["content"])
        content["post_processor"] = None  # it refers to special tokens by name
        return content

    def decode(self, ids: Iterable[int], *, specials: bool = False) -> str:
        """Return the text of token ids; special tokens are left out unless `specials` is True."""
        numbers = [int(i) for i in ids]
        with library_errors(*FAILED):
            return self.backend.decode(numbers, skip_special_tokens=not specials)

    def decode_many(self, sequences: Sequence[Ids]) -> list[str]:
        """Return the text of each sequence of token ids, without special tokens."""
        with library_errors(*FAILED):
            return self.backend.decode_batch([ids.tolist() for ids in sequences], skip_special_tokens=True)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the token string of each token id."""
        return [self.vocabulary[int(i)] for i in ids]

    def word_starts(self, ids: Ids) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return a mask, (n,), of the tokens that begin a word, given n token ids; the first token always does."""
        return self._words(ids)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the smallest unsigned integer type (16 or 32 bits) that holds all token ids."""
        return np.dtype(np.uint16 if self.size <= 1 << 16 else np.uint32)

    @cached_property
    def _words(self) -> WordStarts:
        return WordStarts(self.backend, self.vocabulary, self.specials, self.roles.get("unknown"))

    @cached_property
    def _with_specials(self) -> tokenizers.Tokenizer:
        """Return a `tokenizers` backend that recognizes special tokens, such as "[MASK]", in texts."""
        backend = tokenizers.Tokenizer.from_str(self.backend.to_str())
        backend.encode_special_tokens = False
        return backend

    # -- files --------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path, template: Template | None = None, max_length: int | None = None) -> None:
        """Write tokenizer.json and tokenizer_config.json, which `transformers.PreTrainedTokenizerFast` can load.

        With the `template` of a model, the files also say which special tokens to put around texts and which inputs the
        model has; `max_length` is the maximum number of tokens that they state.
        """
        folder = Path(folder)
        backend, config = self.backend, self._config(template)
        if template is not None:
            backend = with_template(backend, self.role_tokens, template)
            segments = ["token_type_ids"] if template.segments else []
            config["model_input_names"] = ["input_ids", *segments, "attention_mask"]
            if template.last:  # models with such a template read the last token
                config["padding_side"] = "left"
        if max_length is not None:
            config["model_max_length"] = max_length
        write_bytes(folder / "tokenizer.json", backend.to_str(pretty=True).encode())
        write_json(folder / "tokenizer_config.json", config)
        if self._target is not None:
            self._target.save(folder / TARGET, template, max_length)

    def differing_frames(self, template: Template) -> list[tuple[str, str]]:
        """Return where the special tokens around texts differ between the tokenizer's files and a model's `template`.

        The result has a pair for a single text and for a pair of texts, if they differ: the special tokens in the
        files, and those in the template.

        >>> tokenizer.differing_frames(ROBERTA.template)  # doctest: +SKIP
        [('[CLS] A [SEP] B [SEP]', '<s> A </s></s> B </s>')]
        """
        backends = self.backend, with_template(self.backend, self.role_tokens, template)
        pairs = zip(*map(special_token_frames, backends), strict=False)
        return [(published, expected) for published, expected in pairs if published != expected]

    def _config(self, template: Template | None) -> dict[str, Any]:
        """Return the content of tokenizer_config.json for a model with the given template of special tokens."""
        config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        config |= self.special_token_names(template)
        if self.characters:
            config[CHARACTERS] = self.characters
        if others := [token for role, token in self.role_tokens.items() if role not in ROLE_NAMES]:
            config["additional_special_tokens"] = list(dict.fromkeys(others))
        if "language" in self.role_tokens:
            codes = {token: role for role, token in self.role_tokens.items() if role.startswith("language ")}
            config[SOURCE_LANGUAGE] = codes[self.role_tokens["language"]].removeprefix("language ")
        return config

    def special_token_names(self, template: Template | None = None) -> dict[str, str]:
        """Return the special tokens by their names in tokenizer_config.json, such as bos_token.

        If the tokenizer was loaded without such names, they follow from the roles; the bos_token is then the token that
        precedes a text in `template`.
        """
        found = {names[0]: self.role_tokens[role] for role, names in ROLE_NAMES.items() if role in self.role_tokens}
        opening = "start" if template is None else template.opening_role
        if opening in self.role_tokens and opening != "padding":  # T5's decoder starts with the padding token
            found["bos_token"] = self.role_tokens[opening]
        return self.names or found

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Load a tokenizer from a folder or a file, or that of a bundled model.

        `path` is a folder, a file (tokenizer.json, vocab.txt, .model, …), or the name of a bundled model.
        """
        folder = Path(path)
        if not folder.exists() and str(path) in bundled_names():
            folder = bundled_folder(str(path))
        backend, names, settings = load_backend(folder)
        tokenizer = cls(backend, assign_roles(backend, names, settings.language), settings.characters, names)
        return tokenizer.set_target(cls.load(folder / TARGET)) if (folder / TARGET).is_dir() else tokenizer

    @classmethod
    def from_state(cls, state: str) -> Tokenizer:
        """Rebuild a tokenizer from the string that `state()` returned, for example in another process."""
        content = json.loads(state)
        backend = tokenizers.Tokenizer.from_str(content["backend"])
        return cls(backend, content["roles"], content["characters"], content["names"])

    def state(self) -> str:
        """Return the whole tokenizer as a JSON string, from which `from_state` rebuilds it."""
        content = {"backend": self.backend.to_str(), "roles": self.role_tokens, "characters": self.characters}
        return json.dumps(content | {"names": self.names})

    def describe(self) -> dict[str, Any]:
        """Return a summary of the tokenizer: the report on its training if it has one, else kind, size and roles."""
        return self.report or {"kind": self.kind, "vocab_size": self.size, "roles": sorted(self.roles)}


def replace_private(text: str) -> str:
    """Return a text with spaces in place of the private-use characters that have a meaning in this module."""
    return text.replace(PRIVATE, " " * len(PRIVATE)) if PRIVATE in text else text


def assign_roles(backend: tokenizers.Tokenizer, names: Mapping[str, str], language: str = "") -> dict[str, str]:
    """Return the token string of each role, such as "start", that a backend has a special token for.

    `names` are the special tokens by their names in tokenizer_config.json (cls_token, …). `language` selects the token
    with the role `language`, for templates that contain the language of a text (mBART); by default it is the only
    language token of the vocabulary, if there is exactly one.
    """
    named = dict(names)
    if "bos_token" in named and named.get("cls_token") == named.get("sep_token"):
        named.pop("cls_token", None)  # XLM: both are </s>, but texts start with <s>
    candidates = {role: [named[name] for name in names if name in named] for role, names in ROLE_NAMES.items()}
    roles = {role: tokens[0] for role, tokens in candidates.items() if tokens}
    spelled = next((s for s in SENTINELS if backend.token_to_id(s.format(0)) is not None), "")
    for number in takewhile(lambda n: spelled and backend.token_to_id(spelled.format(n)) is not None, count()):
        roles[f"sentinel {number}"] = spelled.format(number)
    for token in sorted(t.content for t in backend.get_added_tokens_decoder().values()):
        if match := LANGUAGE.fullmatch(token):
            roles[f"language {match[1] or match[2]}"] = token
    if backend.token_to_id(ADDED_TOKENS["extract"]) is not None:
        roles["extract"] = ADDED_TOKENS["extract"]
    languages = [role for role in roles if role.startswith("language ")]
    spoken = f"language {language}" if language or len(languages) != 1 else languages[0]
    return roles | ({"language": roles[spoken]} if spoken in roles else {})
