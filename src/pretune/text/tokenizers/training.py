"""Train tokenizers on a stream of documents, in bounded memory.

The trainers of the `tokenizers` library keep every distinct word in memory. Here words are counted first, rare ones are
dropped when there are too many, and the trainer gets the resulting table.

Two properties of the library to know: it trains WordPiece by pair frequency, like BPE; only encoding (longest match
first) is WordPiece's. Training by the likelihood gain f(ab) / (f(a) f(b)) of the original is in `wordpiece_likelihood`.
And its Unigram trainer adds numbers in an order that changes from run to run, so two trainings may differ in the last
pieces.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, get_args

import numpy as np
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers

from pretune.runtime.errors import PretuneError, suggest
from pretune.text.corpus.documents import Document
from pretune.text.corpus.word_counts import WordCounts, scale_counts, smooth_languages
from pretune.text.tokenizers.character_ids import MAX_CHARACTERS
from pretune.text.tokenizers.kinds import WHOLE_WORDS, PairScore
from pretune.text.tokenizers.kinds import Kind as Kind
from pretune.text.tokenizers.tokenizer import TRAINED_SPECIALS, Tokenizer
from pretune.text.tokenizers.wordpiece_likelihood import PREFIX, learn_wordpieces

DISTINCT = 1_000_000  # distinct words kept while counting
OCCURRENCES = 30_000_000  # word occurrences passed to the trainer
HELD_OUT = 2_000_000  # maximum held-out characters, for the report
HELD_OUT_EVERY = 50  # every 50th line is held out
CHARACTER_COVERAGE = 0.9995  # share of the text that the characters of the alphabet cover
SMALL_ALPHABET = 1000  # minimum size of the alphabet, if the vocabulary is large enough
MERGES_SHOWN = 10


def train_on_documents(
    documents: Iterable[Document] | Mapping[str, Iterable[Document]],
    kind: Kind,
    vocab_size: int,
    *,
    language_alpha: float = 1.0,
    lowercase: bool = False,
    pair_score: PairScore = "frequency",
    extra_ids: int = 0,
    languages: Iterable[str] = (),
    least: int = 1,
    max_distinct_words: int = DISTINCT,
    max_occurrences: int = OCCURRENCES,
    fit: bool = False,
    note: Callable[[str], None] = lambda _: None,
) -> Tokenizer:
    """Train a tokenizer on documents, and return it with statistics on the training and on held-out lines.

    The statistics are in the attribute `report` of the tokenizer.

    Parameters
    ----------
    documents
        The documents, or a mapping from languages to the documents in each.
    language_alpha
        The exponent of language sampling: a language is sampled in proportion to its share of the text to this power.
    kind
        The algorithm; the vocabularies of `items`, `words` and `characters` consist of whole words.
    vocab_size
        The number of tokens, including special tokens.
    pair_score
        What WordPiece training merges first: the most frequent pair, or the one that raises the likelihood most.
    extra_ids, languages
        The number of sentinel tokens to add (<extra_id_0>, …), and the languages for which to add a token (<lang:en>).
    least
        The minimum count of a word, for the kinds with whole words.
    max_distinct_words, max_occurrences
        The maximum number of distinct words that are kept while words are counted, and the maximum number of word
        occurrences that are passed to the trainer.
    fit
        Whether the vocabulary may exceed a `vocab_size` that is too small for the characters of the text; else this is
        an error.
    note
        A callback for progress messages.
    """
    if kind not in get_args(Kind):
        raise PretuneError(f"unknown kind of tokenizer {kind!r}; {suggest(kind, get_args(Kind))}")
    if pair_score not in get_args(PairScore):
        raise PretuneError(f"unknown pair_score {pair_score!r}; {suggest(pair_score, get_args(PairScore))}")
    if pair_score == "likelihood" and kind != "wordpiece":
        raise PretuneError(
            f"pair_score likelihood applies only to wordpiece, not to {kind}; remove pair_score, or train a wordpiece tokenizer"
        )
    if not 0 <= language_alpha <= 1:
        raise PretuneError(
            f"language_alpha={language_alpha:g}: the value must be between 0 (languages are sampled uniformly) and 1 (in "
            "proportion to their text)"
        )
    started = time.monotonic()
    by_language = documents if isinstance(documents, Mapping) else {"": documents}
    roles = dict(TRAINED_SPECIALS)
    if kind == "byte-level-bpe":
        del roles["unknown"]  # bytes can represent any text
    roles |= {f"sentinel {i}": f"<extra_id_{i}>" for i in range(extra_ids)}
    roles |= {f"language {name}": f"<lang:{name}>" for name in languages}
    specials = list(dict.fromkeys(roles.values()))
    if kind in WHOLE_WORDS:
        counted = _count_items(by_language, max_distinct_words, language_alpha)
        return _train_words(counted, kind, vocab_size, roles, specials, lowercase, least)

    words, held_out = _count(by_language, max_distinct_words, language_alpha, note)
    if not words.table:
        raise PretuneError("the corpus contains no words to train a tokenizer on; pass files with text")
    backend = _untrained(kind, lowercase)
    alphabet, left_out = _alphabet(backend, words.table, min(SMALL_ALPHABET, vocab_size // 8))
    table = words.table
    if kind in ("unigram", "sentencepiece-unigram") and left_out:  # this trainer cannot limit its alphabet
        table = Counter({word: n for word, n in table.items() if left_out.isdisjoint(word)}) or table
    # Passed as special tokens, so that their order does not depend on a hash map; made normal tokens again below.
    continuations = _continuations(backend, table, alphabet) if kind in ("wordpiece", "bpe") else []
    note(f"{words.seen:,} words, {len(words.table):,} distinct; learning pieces")
    if pair_score == "likelihood":
        known = [*specials, *continuations, *sorted(alphabet)]
        counts = _split_words(backend, dict(scale_counts(table, max_occurrences)))
        learned = learn_wordpieces(counts, known, vocab_size, note)
        vocabulary = {token: number for number, token in enumerate([*known, *learned])}
        backend.model = models.WordPiece(vocabulary, unk_token=roles["unknown"])
    else:
        _train_backend(backend, kind, vocab_size, table, max_occurrences, specials + continuations, sorted(alphabet))
    backend = _only_special(backend, specials)
    if backend.get_vocab_size() > vocab_size and not fit:
        needed = f"special tokens and single characters alone are {backend.get_vocab_size()}"
        advice = f"{needed} tokens; choose a larger size"
        raise PretuneError(f"a {kind} tokenizer of size {vocab_size} is too small for this text: {advice}")
    backend.post_processor = _template(backend)
    tokenizer = Tokenizer(backend, roles)
    tokenizer.report = {
        "kind": kind,
        "vocab_size": tokenizer.size,
        "requested": vocab_size,
        "alphabet": 256 if kind == "byte-level-bpe" else len(alphabet),
        "words": words.seen,
        "distinct_words": len(words.table),
        "pruned_words": words.dropped_words,
        "pruned_share": words.dropped_occurrences / words.seen,
        "sampled_share": min(1.0, max_occurrences / max(1, sum(table.values()))),
        **({"pair_score": pair_score} if kind == "wordpiece" else {}),
        "held_out": _evaluate(tokenizer, held_out, words.table),
        "first_merges": first_merges(tokenizer),
        "seconds": round(time.monotonic() - started, 1),
    }
    return tokenizer


def _train_backend(
    backend: tokenizers.Tokenizer,
    kind: Kind,
    size: int,
    table: Counter[str],
    max_occurrences: int,
    specials: list[str],
    alphabet: list[str],
) -> None:
    """Train a `tokenizers` backend with the trainer of the library on `table`, which counts words.

    The vocabulary has up to `size` tokens, including the special tokens `specials` and the characters in `alphabet`;
    the trainer gets at most `max_occurrences` words.
    """
    trainer = _trainer(kind, size, specials, alphabet)
    whole_lines = kind in ("sentencepiece-bpe", "sentencepiece-unigram")
    if whole_lines:  # pieces do not cross words, so word counts suffice
        backend.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    try:
        backend.train_from_iterator(_feed(table, max_occurrences), trainer)
    except BaseException as error:  # the library's panics are not Exceptions
        if isinstance(error, KeyboardInterrupt):
            raise
        advice = "try another size or more text"
        raise PretuneError(f"training a {kind} tokenizer of size {size} failed ({error}); {advice}") from error
    if whole_lines:
        backend.pre_tokenizer = None  # type: ignore[assignment]


def _train_words(
    counts: WordCounts,
    kind: Kind,
    size: int,
    roles: dict[str, str],
    specials: list[str],
    lowercase: bool,
    least: int,
) -> Tokenizer:
    """Build a tokenizer whose vocabulary consists of special tokens and the most frequent of the words in `counts`.

    The kind `items` splits text only at spaces; the kinds `words` and `characters` split it at punctuation, too. With
    `characters`, every word is also encoded by its bytes, in ELMo's 262 symbols, whether or not it is in the
    vocabulary. Words that occur fewer than `least` times are left out.
    """
    if not counts.table:
        raise PretuneError("the corpus contains no words to build a vocabulary from; pass files with text")
    splitter, table = _word_splitter(kind, lowercase), counts.table
    if kind != "items":
        table = Counter()
        for item, count in counts.table.items():
            for word, _ in splitter.pre_tokenizer.pre_tokenize_str(splitter.normalizer.normalize_str(item)):
                table[word] += count
    ranked = sorted(table.items(), key=lambda item: (-item[1], item[0]))
    wanted = [item for item, count in ranked if item not in specials and count >= least]
    items = wanted[: max(1, size - len(specials))]
    tokenizer = _word_level(splitter, items, roles, characters=MAX_CHARACTERS if kind == "characters" else 0)
    names = ("items", "events") if kind == "items" else ("distinct_words", "words")
    total = counts.seen if kind == "items" else table.total()
    tokenizer.report = {
        "kind": kind,
        "vocab_size": tokenizer.size,
        "requested": size,
        names[0]: len(table),
        names[1]: total,
        "unknown_rate": 1 - sum(table[item] for item in items) / total,
    }
    return tokenizer


def word_level_tokenizer(words: Iterable[str], *, spelled: bool = False, lowercase: bool = False) -> Tokenizer:
    """Build a tokenizer whose vocabulary is a list of words; with `spelled`, it also encodes words by their characters.

    >>> word_level_tokenizer(["a", "cat"]).encode("a cat")
    [5, 6]
    """
    roles = dict(TRAINED_SPECIALS)
    splitter = _word_splitter("words", lowercase)
    return _word_level(splitter, [w for w in words if w not in roles.values()], roles, MAX_CHARACTERS if spelled else 0)


def _word_level(
    splitter: tokenizers.Tokenizer, words: Iterable[str], roles: dict[str, str], characters: int = 0
) -> Tokenizer:
    """Return a tokenizer that splits text as `splitter` does, with special tokens and the given words as vocabulary.

    `roles` maps roles to special tokens; `characters` is the number of character ids per word (ELMo), else 0.
    """
    specials = list(dict.fromkeys(roles.values()))
    vocabulary = {token: number for number, token in enumerate(dict.fromkeys([*specials, *words]))}
    splitter.model = models.WordLevel(vocabulary, unk_token=roles["unknown"])
    backend = _only_special(splitter, specials)
    backend.post_processor = _template(backend)
    return Tokenizer(backend, roles, characters)


def _word_splitter(kind: Kind, lowercase: bool) -> tokenizers.Tokenizer:
    """Return a `tokenizers` backend that splits text at spaces (kind "items") or also at punctuation (other kinds)."""
    backend = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    if kind == "items":
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    else:
        backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=False)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return backend


def _count_items(by_language: Mapping[str, Iterable[Document]], limit: int, alpha: float) -> WordCounts:
    """Count the items (words between spaces, of any length) of the documents of each language, and smooth the counts.

    At most `limit` distinct items are counted; `alpha` is the exponent of the smoothing.
    """
    counts = {}
    for language, documents in by_language.items():
        counts[language] = words = WordCounts(limit=max(1, limit // len(by_language)), longest=None)
        for document in documents:
            words.add(document.text)
    return smooth_languages(counts, alpha)


def _count(
    by_language: Mapping[str, Iterable[Document]], limit: int, alpha: float, note: Callable[[str], None]
) -> tuple[WordCounts, list[str]]:
    """Count the words of the documents of each language, and smooth the counts; return them and the held-out lines.

    At most `limit` distinct words are counted; `alpha` is the exponent of the smoothing, and `note` a callback for
    progress messages.
    """
    held_out: list[str] = []
    counts = {}
    for language, documents in by_language.items():
        counts[language] = words = WordCounts(limit=max(1, limit // len(by_language)))
        left, number = HELD_OUT // len(by_language), 0
        for document in documents:
            for line in document.text.splitlines():
                if not line or line.isspace():
                    continue
                number += 1
                if number % HELD_OUT_EVERY == 0 and left > 0:
                    held_out.append(line[:left])
                    left -= len(line)
                else:
                    words.add(line)
            note(f"{words.seen:,} words, {len(words.table):,} distinct")
    return smooth_languages(counts, alpha), held_out


def _untrained(kind: Kind, lowercase: bool) -> tokenizers.Tokenizer:
    """Return an untrained `tokenizers` backend of the given kind, with its normalizer, pre-tokenizer and decoder."""
    lower = [normalizers.Lowercase()] if lowercase else []
    if kind in ("wordpiece", "bpe"):
        if kind == "wordpiece":
            backend = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))  # type: ignore[call-arg]
        else:
            backend = tokenizers.Tokenizer(models.BPE(unk_token="[UNK]", continuing_subword_prefix="##"))
        # Accents are kept: stripping them would decompose й, ё and every Korean syllable.
        backend.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=False)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    elif kind == "byte-level-bpe":
        backend = tokenizers.Tokenizer(models.BPE())
        backend.normalizer = normalizers.Sequence(lower)
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
    else:
        if kind == "sentencepiece-bpe":
            backend = tokenizers.Tokenizer(models.BPE(unk_token="[UNK]", fuse_unk=True))
        else:
            backend = tokenizers.Tokenizer(models.Unigram())
        tidy = [normalizers.NFKC(), *lower, normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
        if kind == "unigram":
            backend.normalizer = normalizers.Sequence(tidy)
            words = pre_tokenizers.Metaspace(prepend_scheme="always")
            backend.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.Punctuation(behavior="isolated")])
        else:  # as SentencePiece: spaces are replaced by ▁, and there is no pre-tokenizer
            marks = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
            backend.normalizer = normalizers.Sequence([*tidy, *marks])
        backend.decoder = decoders.Metaspace(prepend_scheme="always")
    return backend


def _trainer(kind: Kind, size: int, specials: list[str], alphabet: list[str]) -> Any:
    """Return the trainer of the `tokenizers` library for the given kind of tokenizer.

    The vocabulary will have `size` tokens, including the special tokens `specials` and the characters in `alphabet`.
    """
    if kind in ("unigram", "sentencepiece-unigram"):
        return trainers.UnigramTrainer(vocab_size=size, special_tokens=specials, unk_token="[UNK]", show_progress=False)
    if kind == "byte-level-bpe":
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    # The characters are listed, not only limited in number: a limit alone breaks ties at random.
    common: dict[str, Any] = {
        "vocab_size": size,
        "special_tokens": specials,
        "initial_alphabet": alphabet,
        "limit_alphabet": len(alphabet),
        "min_frequency": 2,
        "show_progress": False,
    }
    if kind == "wordpiece":
        return trainers.WordPieceTrainer(**common)
    if kind == "bpe":
        common["continuing_subword_prefix"] = "##"
    return trainers.BpeTrainer(**common)


def _alphabet(backend: tokenizers.Tokenizer, table: Counter[str], least: int) -> tuple[set[str], set[str]]:
    """Return the set of the most frequent characters of words, and the set of all other characters.

    The first set covers 99.95 % of the characters that occur in `table`, which counts words, and has at least `least`
    characters if there are so many.
    """
    normalize = backend.normalizer.normalize_str if backend.normalizer else str
    characters: Counter[str] = Counter()
    for word, count in table.items():
        for character in normalize(word):
            characters[character] += count
    needed = CHARACTER_COVERAGE * characters.total()
    kept: set[str] = set()
    for character, count in characters.most_common():
        if needed <= 0 and len(kept) >= least:
            break
        kept.add(character)
        needed -= count
    return kept, set(characters) - kept


def _continuations(backend: tokenizers.Tokenizer, table: Counter[str], alphabet: set[str]) -> list[str]:
    """Return, sorted, the token ##c for every character c of the alphabet that occurs inside a word of `table`."""
    inside = {character for word in _split_words(backend, table) for character in word[1:]}
    return [f"{PREFIX}{character}" for character in sorted(inside & alphabet)]


def _split_words(backend: tokenizers.Tokenizer, table: Mapping[str, int]) -> Counter[str]:
    """Normalize and split the words that `table` counts with a backend; return the counts of the resulting words."""
    counts: Counter[str] = Counter()
    for word, count in table.items():
        for piece, _ in backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(word)):
            counts[piece] += count
    return counts


def _only_special(backend: tokenizers.Tokenizer, specials: list[str]) -> tokenizers.Tokenizer:
    """Return a copy of a `tokenizers` backend in which only the given tokens are special tokens."""
    content = json.loads(backend.to_str())
    content["added_tokens"] = []
    clean = tokenizers.Tokenizer.from_str(json.dumps(content))
    # A masked token includes the space before it, so the mask token strips that space, as in RoBERTa.
    mask = TRAINED_SPECIALS["mask"]
    added = [AddedToken(token, special=True, normalized=False, lstrip=token == mask) for token in specials]
    clean.add_special_tokens(added)
    return clean


def _feed(table: Counter[str], max_occurrences: int) -> Iterator[str]:
    """Yield lines of about 1,000 words, in which each word occurs as often as `table` says.

    If `table` has more than `max_occurrences` occurrences in total, all counts are scaled down proportionally.
    """
    line: list[str] = []
    for word, count in scale_counts(table, max_occurrences):
        while count > 0:
            part = min(count, 1000)
            line += [word] * part
            count -= part
            if len(line) >= 1000:
                yield " " + " ".join(line)
                line = []
    if line:
        yield " " + " ".join(line)


def _template(backend: tokenizers.Tokenizer) -> processors.TemplateProcessing:
    """Return the default post-processor of trained tokenizers, which adds BERT's special tokens: [CLS] A [SEP] B [SEP]."""
    start, separator = TRAINED_SPECIALS["start"], TRAINED_SPECIALS["separator"]
    ids = [(token, backend.token_to_id(token)) for token in (start, separator)]
    single = f"{start} $A {separator}"
    return processors.TemplateProcessing(single=single, pair=f"{single} $B:1 {separator}:1", special_tokens=ids)


def _evaluate(tokenizer: Tokenizer, held_out: list[str], table: Counter[str]) -> dict[str, Any]:
    """Return the tokens per word, word coverage and unknown token rate of a tokenizer on held-out lines.

    Without held-out lines, they are measured on the words that `table` counts.
    """
    texts = held_out or [word for word, _ in table.most_common(10_000)]
    words = [word for text in texts for word in text.split()]
    ids, lengths = tokenizer.encode_many([" " + word for word in words])
    unknown = ids == tokenizer.roles.get("unknown", -1)
    bad_words = len(np.unique(np.repeat(np.arange(len(words)), lengths)[unknown]))
    return {
        "text": "held-out lines" if held_out else "training words (too few lines to hold any out)",
        "words": len(words),
        "tokens": len(ids),
        "fertility": len(ids) / max(1, len(words)),
        "coverage": 1 - bad_words / max(1, len(words)),
        "unknown_rate": float(unknown.mean()) if len(ids) else 0.0,
    }


def first_merges(tokenizer: Tokenizer, count: int = MERGES_SHOWN) -> list[str]:
    """Return the first `count` tokens that BPE merges produce or, without merges, that have several characters."""
    merges = json.loads(tokenizer.backend.to_str())["model"].get("merges")
    if merges:
        return [left + right.removeprefix("##") for left, right in merges[:count]]
    plain = (t for t, special in zip(tokenizer.vocabulary, tokenizer.specials, strict=True) if t and not special)
    return [token for token in plain if len(token.removeprefix("##").replace("▁", "")) > 1][:count]
