"""usage: perf/fingerprint.py [--out FILE] [--only SECTION …]    print a fingerprint of what this checkout computes
       perf/fingerprint.py --compare BEFORE AFTER [--only PREFIX …]    print what differs; exit with 1 if anything does

Two checkouts with equal fingerprints compute the same numbers, to the bit. A fingerprint is a JSON object that maps a name to a
SHA-256 or a list. Losses and other numbers per step are hexadecimal floats, and rows of results are canonical JSON, so nothing is
rounded. Fingerprints compare only on one machine with the same versions of the libraries, which are listed under `environment`.

Everything runs on the CPU in fp32 with one thread, on text generated from a seed, and uses only the public API of pretune.

Left out: CUDA, torch.compile and several processes; `evaluate` and `quickstart`, which need published data or several minutes;
`tune` and `compress`, whose choices depend on measured time; `train_vectors`, which needs gensim; model cards, reports and help;
pieces and scores of a Unigram tokenizer, which the tokenizers library computes by adding floats in a random order: two trainings
on the same text differ in the last bits of scores, and so in the order of pieces. Presets with such a tokenizer get a fixed one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import torch
from safetensors.torch import load_file

import pretune as pt

Value = str | list[str]
Entries = Iterator[tuple[str, Value]]
Row = Mapping[str, Any]

# -- The names of options, files and results that this script depends on. After a rename, adapt this section alone. ------------

QUIET = {"PRETUNE_PROGRESS": "none"}  # environment variables that silence progress bars
BUNDLED = "pretune-small-en"
OF_TIME = (
    "step",
    "seconds",
    "tokens_per_second",
    "mfu",
    "evaluation_seconds",
    "loading_seconds",
    "compilation_seconds",
)  # metrics that are not compared
# Word in this checkout → word in earlier fingerprints: in keys of metrics and rows, in config.json, in objectives of presets.
NEW_NAMES = {
    "final_mask_rate": "final_rate",
    "generator_hidden_size": "width",
    "generator_layers": "layers",
    "generator_size": "size",
    "infill_rate": "infill",
    "label_smoothing": "smoothing",
    "mask_rate": "rate",
    "max_span_length": "longest",
    "poisson_lambda": "mean",
    "span_boundary": "boundary",
}

# Training steps of the tiny presets, and of those among them whose steps are slow.
STEPS, FEW_STEPS = 50, 12
SLOW = (
    "awd-lstm-tiny", "cove-tiny", "deberta-v3-tiny", "elmo-tiny", "elmo-transformer-tiny", "mass-tiny", "mbart-tiny",
    "mt5-tiny", "performer-tiny", "reformer-tiny", "rnnsearch-tiny", "seq2seq-tiny", "t5-v1.1-tiny", "transfo-xl-tiny",
    "transformer-tiny", "ulmfit-backward-tiny", "ulmfit-tiny", "xlnet-tiny",
)  # fmt: skip
# Objectives that no tiny preset has: name → (preset, objective, kind of data).
OBJECTIVES = {
    "autoencode": ("lstm-lm-tiny", "autoencode", "text"),
    "dialogues": ("bert-tiny", "mlm+dlm", "dialogues"),
    "final rate": ("bert-tiny", "mlm(mask_rate=0.3,final_mask_rate=0.15)", "text"),
    "items": ("bert-tiny", "item", "histories"),
    "mixture": ("bert-tiny", "0.7*mlm|0.3*lm", "text"),
    "prefix": ("gpt2-tiny", "prefix", "text"),
    "prefix with an encoder": ("t5-tiny", "prefix_seq2seq", "text"),
    "shuffle": ("bart-tiny", "shuffle", "text"),
    "translated pairs": ("xlm-tiny", "rtd|trtd", "store and pairs"),
}
CLASSIFY = "classify"
# Tasks: name → (objective, kind of rows).
TASKS = {
    "answer": ("answer(stride=4)", "questions"),
    "choose": ("choose", "choices"),
    "classify": (CLASSIFY, "labels"),
    "classify on layers": ("classify on mix/bilstm", "labels"),
    "classify with lm loss": ("classify(pooling=mean)+0.5*mlm", "labels"),
    "contrast": ("contrast", "pairs"),
    "contrast of scores": ("contrast(temperature=1)", "scores"),
    "entity": ("entity", "entities"),
    "match": ("match", "spans"),
    "multi-label": ("classify(multi_label=true,class_weight=balanced)", "several labels"),
    "prompt": ('prompt(template="It was [MASK].",verbalizer=no:ba/yes:bo)', "labels"),
    "rank": ("rank", "candidates"),
    "rank by row": ("rank(ranking_loss=pointwise)", "candidates"),
    "regress": ("regress", "scores"),
    "tag": ("tag", "tags"),
}
STRATEGIES = ("frozen", "top(1)", "gradual+reset(1)", "lora(2)", "freelb(2)", "full+sparse(0.5)", "full+int8")
OTHER_CLASSIFIERS = ("bart-tiny", "gpt2-tiny", "lstm-lm-tiny", "modernbert-tiny", "t5-tiny")
GENERATIVE = ("bart-tiny", "gpt-tiny", "gpt2-tiny", "t5-tiny")
TRANSLATORS = ("rnnsearch-tiny", "transformer-tiny")
TEXT_TO_TEXT, SEVERAL_TASKS = "generate(max_new_tokens=8,num_beams=2)", "mood: classify | grade: regress"
DECODING = {
    "greedy": {},
    "penalized": {"repetition_penalty": 1.5, "no_repeat_ngram_size": 1},
    "sampled": {"temperature": 1.5, "top_k": 200, "top_p": 0.98, "seed": 7},
    "beam": {"num_beams": 3, "length_penalty": 0.8, "no_repeat_ngram_size": 3},
}
# Poolings: name in fingerprints → pooling.
POOLINGS = {"mean": "mean", "start": "cls", "max": "max"}
PRUNING = {
    "heads and units": {"heads": 0.5, "ffn_units": 0.5},
    "layers": {"drop_layers": "top(1)"},
    "weights": {"sparsity": 0.6, "steps": 4},
}
QUANTIZATION = {
    "dynamic": {"method": "dynamic"},
    "dynamic in torch": {"method": "dynamic", "backend": "torch"},
    "static": {"method": "static", "train": True},
    "aware": {"method": "qat", "train": True, "steps": 4},
    "weights": {"method": "weight-only"},
    "int4 weights": {"method": "weight-only", "bits": 4},
    "bf16": {"method": "bf16"},
}
# Kinds of tokenizers: name in fingerprints → kind.
TOKENIZERS = {
    "wordpiece": "wordpiece",
    "bpe": "bpe",
    "byte-bpe": "byte-level-bpe",
    "unigram": "unigram",
    "raw-bpe": "sentencepiece-bpe",
    "raw-unigram": "sentencepiece-unigram",
    "items": "items",
    "words": "words",
    "characters": "characters",
}
UNIGRAM = TOKENIZERS["raw-unigram"]
# Presets with a Unigram tokenizer → the options to train it with.
UNIGRAM_PRESETS: dict[str, dict[str, Any]] = {
    "albert-tiny": {"lowercase": True},
    "camembert-tiny": {},
    "deberta-v3-tiny": {},
    "mbart-tiny": {"languages": ["en_XX", "fr_XX"]},
    "mt5-tiny": {"extra_ids": 100},
    "performer-tiny": {},
    "t5-tiny": {"extra_ids": 100},
    "t5-v1.1-tiny": {"extra_ids": 100},
    "xlm-roberta-tiny": {},
    "xlnet-tiny": {},
}


def known_presets() -> list[dict[str, Any]]:
    return pt.show("presets").describe()["presets"]


def write_preset(folder: Path, name: str, vocabulary: int) -> Path:
    """Write a preset that is like another, but with a tokenizer of this size; return its file."""
    file = folder / f"{name}.yaml"
    file.write_text(f"like: {name}\ntokenizer: {{vocab_size: {vocabulary}}}\n", encoding="utf-8")
    return file


def train_tokenizer(corpus: Path, kind: str, size: int, out: Path, **options: Any) -> None:
    pt.train_tokenizer(corpus, kind=kind, vocab_size=size, split_by="line", out=out, **options)  # type: ignore[arg-type]


def split_text(tokenizer: Path, text: str) -> Row:
    return pt.inspect_tokenizer(tokenizer, [text]).describe()["splits"][0]


def prepare(corpus: Path, tokenizer: Path, out: Path, language: str) -> None:
    pt.prepare(corpus, tokenizer, out, language=language, split_by="line", processes=1)


def pretrain(
    model: Path,
    data: Sequence[Path],
    out: Path,
    steps: int,
    objective: str | None = None,
    tokenizer: Path | None = None,
) -> pt.Run:
    reading = {"split_by": "line"} if all(path.name == "text.txt" for path in data) else {}
    return pt.pretrain(
        model, data, out=out, objective=objective, tokenizer=tokenizer, device="cpu", **reading,
        budget=pt.Budget(steps=steps), batch=pt.Batching(tokens=128, max_length=32),
        monitor=pt.Monitoring(log_every=1, held_out_fraction=0.1, max_eval_batches=2, save_every=0),
    )  # fmt: skip


def adapt(model: pt.Run, data: Path, out: Path, steps: int) -> pt.Run:
    return pt.adapt(
        model, [data], out=out, split_by="line", device="cpu", budget=pt.Budget(steps=steps),
        batch=pt.Batching(tokens=128, max_length=32),
        monitor=pt.Monitoring(log_every=1, held_out_fraction=0.1, max_eval_batches=2, save_every=0),
    ).run  # fmt: skip


def of_rows(steps: int) -> dict[str, Any]:
    """Return the options that all training on labeled rows shares."""
    return {
        "budget": pt.Budget(steps=steps),
        "optimizer": pt.Optimizer(lr=2e-3),
        "batch": pt.Batching(size=8, max_length=32),
        "monitor": pt.Monitoring(log_every=1, save_every=0),
        "device": "cpu",
    }


def finetune(
    model: pt.Run, train: Any, dev: Any, out: Path, objective: str, strategy: str = "full", steps: int = 6
) -> pt.Run:
    more = {"objective": objective, "strategy": strategy, "num_seeds": 1, "report": False}
    return pt.finetune(model, train, dev=dev, out=out, **more, **of_rows(steps))


def distill(teacher: pt.Run, train: Path, dev: Path, out: Path) -> pt.Run:
    more = {"student": "layers=1", "alpha": 0.5, "temperature": 2.0}
    return pt.distill(teacher, train=train, dev=dev, out=out, **more, **of_rows(6))


def quantize(model: pt.Run, train: Path, dev: Path, out: Path, settings: Mapping[str, Any]) -> pt.Run:
    options = {key: value for key, value in settings.items() if key not in ("train", "steps")}
    options |= {"train": train} if "train" in settings else {}
    options |= of_rows(settings["steps"]) if "steps" in settings else {}
    return pt.quantize(model, dev=dev, out=out, **options)


def prune(model: pt.Run, train: Path, dev: Path, out: Path, settings: Mapping[str, Any]) -> pt.Run:
    options = {key: value for key, value in settings.items() if key != "steps"}
    options |= {"train": train} if settings.keys() & {"heads", "ffn_units", "steps"} else {}
    options |= of_rows(settings["steps"]) if "steps" in settings else {}
    return pt.prune(model, dev=dev, out=out, **options)


def generate(model: pt.Run, prompts: Sequence[str], decoding: Mapping[str, Any]) -> Iterable[Row]:
    return pt.generate(model, prompts, max_new_tokens=12, device="cpu", **decoding)


def ask(model: pt.Run | str, texts: Sequence[str], cloze: str, answers: Sequence[str]) -> Iterable[Row]:
    return pt.ask(model, texts, template=cloze, answers=answers, calibrate=True)


def translate(model: pt.Run, texts: Sequence[str], beams: int) -> Iterable[Row]:
    return pt.translate(model, texts, num_beams=beams, max_new_tokens=12, alignments=True, device="cpu")


def embed(model: pt.Run | str, texts: Sequence[str], layer: int, pooling: str) -> np.ndarray[Any, Any]:
    """Return the vectors of texts, (texts, width)."""
    rows = pt.embed(model, texts, layer=layer, pooling=pooling)
    return np.array([row["vector"] for row in rows], dtype=np.float32)


def in_transformers(model: pt.Run) -> bool:
    return pt.load(model.folder).core.family.in_transformers


def export(model: pt.Run | str, out: Path, to: str = "hf") -> None:
    pt.export(model, out=out, format=to)  # type: ignore[arg-type]


# -- Text and rows, generated from a seed -----------------------------------------------------------------------------------


VOCABULARY = 400
SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
TEXTS = [
    "The capital of France is a large city.",
    "A dog ran across the street.",
    "I would like to return these shoes, please.",
    "Rain!",
    "Nobody knows why the old clock stopped at noon, and nobody has tried to repair it since then.",
]
GAPS = ["The capital of France is [MASK].", "She [MASK] the door and went [MASK]."]


class Source:
    """Generates words from a lexicon of random syllables, some more often than others, and sentences and rows of them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        lexicon = random.Random(0)  # the same words for all seeds
        longer = ("".join(lexicon.choices(SYLLABLES, k=lexicon.choice((2, 2, 3)))) for _ in range(400))
        self.words = [*SYLLABLES[:12], *dict.fromkeys(longer)][:300]

    def word(self) -> str:
        return self.words[min(int(self.random.expovariate(1 / 50)), len(self.words) - 1)]

    def text(self, least: int = 4, most: int = 9) -> str:
        return " ".join(self.word() for _ in range(self.random.randint(least, most)))

    def document(self) -> list[str]:
        return [f"{self.text().capitalize()}." for _ in range(self.random.randint(4, 8))]

    def row(self, kind: str, number: int) -> dict[str, Any]:
        """Return a row of a task, or a dialogue."""
        first, second, third = self.random.sample(self.words[12:60], 3)
        yes = number % 2
        match kind:
            case "labels":
                return {"text": f"{first if yes else second} {self.text()}", "label": "yes" if yes else "no"}
            case "several labels":
                return {"text": self.text(), "labels": [label for i, label in enumerate("abc") if number >> i & 1]}
            case "scores":
                return {"sentence1": self.text(), "sentence2": self.text(), "score": number % 6}
            case "pairs":
                text = self.text()
                return {"anchor": text, "positive": " ".join(reversed(text.split()))}
            case "tags":
                words = [*self.text(2, 4).split(), first, second, *self.text(1, 3).split()]
                tags = ["B-X" if word == first else "I-X" if word == second else "O" for word in words]
                return {"words": words, "tags": tags}
            case "questions":
                passage = f"{self.text()} {first} {second} {self.text()}"
                answers = [f"{first} {second}"] if number % 4 else []
                return {"question": third, "passage": passage, "answers": answers}
            case "choices":
                choices = [self.text() for _ in range(2 + number % 3)]
                return {"premise": first, "choices": choices, "label": number % len(choices)}
            case "spans":
                row: dict[str, Any] = {"label": bool(yes)}
                for side, words in ((1, (first, second)), (2, (third, first))):
                    text, start = f"{words[0]} {words[1]}", len(words[0]) + 1
                    row |= {f"sentence{side}": text, f"start{side}": start, f"end{side}": len(text)}
                return row
            case "candidates":
                query = {"qid": f"q{number // 3}", "query": self.words[number // 3]}
                return {**query, "passage": self.text(), "label": int(number % 3 == 1)}
            case "entities":
                passage = f"{first} {self.text()} {second}"
                return {"passage": passage, "query": "@placeholder .", "entities": [first, second], "answers": [first]}
            case "dialogues":
                return {"turns": [{"role": "QR"[turn % 2], "text": self.text()} for turn in range(3 + number % 3)]}
            case "generation":
                return {"source": self.text(), "target": f"{first} {second}"}
        raise ValueError(kind)


class Work:
    """Holds the texts, rows and runs that the sections share, in one folder; runs are trained when they are first needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs: dict[str, pt.Run] = {}
        self.presets = known_presets()
        source = Source(1)
        documents = [source.document() for _ in range(40)]
        sentences = [sentence for document in documents for sentence in document]
        self.prompts = [" ".join(sentence.split()[:3]) for sentence in sentences[:5]]
        self.write("text.txt", [" ".join(document) for document in documents])
        self.write("pairs.en.txt", sentences)
        self.write("pairs.fr.txt", [" ".join(reversed(sentence[:-1].lower().split())) + "." for sentence in sentences])
        self.write("histories.txt", [source.text(5, 12) for _ in range(40)])
        self.rows("dialogues", 40)

    def write(self, name: str, lines: Iterable[str]) -> Path:
        path = self.folder / name
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path

    def rows(self, kind: str, count: int, seed: int = 2) -> Path:
        """Write rows of a kind to a file; return its path."""
        source = Source(seed)
        lines = [json.dumps(source.row(kind, number)) for number in range(count)]
        return self.write(f"{kind.replace(' ', '-')}{'' if seed == 2 else seed}.jsonl", lines)

    def train_and_dev(self, kind: str) -> tuple[Path, Path]:
        return self.rows(kind, 24), self.rows(kind, 9, seed=3)

    def store(self, corpus: str, kind: str, language: str) -> Path:
        """Return a store of a file of text, with a tokenizer of a kind."""
        folder = self.folder / f"store-{kind}"
        if not folder.exists():
            train_tokenizer(self.folder / corpus, kind, VOCABULARY, self.folder / f"tokenizer-{kind}")
            prepare(self.folder / corpus, self.folder / f"tokenizer-{kind}", folder, language)
        return folder

    def fixed_unigram(self, preset: str) -> Path:
        """Return a Unigram tokenizer for a preset, with pieces and scores that follow from the text alone."""
        folder, corpus = self.new(f"{preset} tokenizer"), self.folder / "text.txt"
        train_tokenizer(corpus, UNIGRAM, VOCABULARY, folder, **UNIGRAM_PRESETS[preset])
        file, text = folder / "tokenizer.json", corpus.read_text(encoding="utf-8")
        trained = json.loads(file.read_text(encoding="utf-8"))
        letters = sorted({*text, *text.lower()} - {" ", "\n"})
        words = [f"▁{word}" for word, _ in Counter(text.lower().replace(".", "").split()).most_common(120)]
        pieces = ["▁", *letters, *(f"▁{letter}" for letter in letters), *SYLLABLES, *words]
        special = [[token["content"], 0.0] for token in trained["added_tokens"]]
        # Longer pieces have better scores, so that texts split into few.
        scored = [[piece, len(piece) - 12 - i / 1024] for i, piece in enumerate(dict.fromkeys(pieces))]
        trained["model"]["vocab"] = special + scored
        file.write_text(json.dumps(trained, ensure_ascii=False), encoding="utf-8")
        return folder

    def data(self, kind: str) -> list[Path]:
        """Return the paths of data of a kind."""
        pairs = [self.folder / "pairs.en.txt", self.folder / "pairs.fr.txt"]
        match kind:
            case "pairs":
                return pairs
            case "store and pairs":
                return [self.store("text.txt", "bpe", "en"), *pairs]
            case "histories":
                return [self.store("histories.txt", "items", "lines")]
            case "dialogues":
                return [self.folder / "dialogues.jsonl"]
        return [self.folder / "text.txt"]

    def new(self, name: str) -> Path:
        """Return the path of a new output."""
        path = self.folder / "out" / name.replace(" ", "-").replace("/", "-")
        path.parent.mkdir(exist_ok=True)
        return path

    def pretrained(self, preset: str) -> pt.Run:
        """Return a run of a preset."""
        if preset not in self.runs:
            (objective,) = (row["objective"] for row in self.presets if row["preset"] == preset)
            kind = "store and pairs" if "tlm" in objective else "pairs" if "translate" in objective else "text"
            model = write_preset(self.folder, preset, VOCABULARY)
            steps = FEW_STEPS if preset in SLOW else STEPS
            tokenizer = self.fixed_unigram(preset) if preset in UNIGRAM_PRESETS else None
            self.runs[preset] = pretrain(model, self.data(kind), self.new(preset), steps, tokenizer=tokenizer)
        return self.runs[preset]

    def classifier(self) -> pt.Run:
        """Return a run of a classifier that was fine-tuned from a tiny BERT."""
        if "classifier" not in self.runs:
            train, dev = self.train_and_dev("labels")
            run = finetune(self.pretrained("bert-tiny"), train, dev, self.new("classifier"), CLASSIFY)
            self.runs["classifier"] = run
        return self.runs["classifier"]


# -- Digests ---------------------------------------------------------------------------------------------------------------


def sha(*parts: bytes | str) -> str:
    """Return the SHA-256 of some parts, whose lengths count."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()


def old_name(text: str) -> str:
    """Return a text with the words that earlier fingerprints have."""
    return re.sub(r"\w+", lambda word: NEW_NAMES.get(word[0], word[0]), text)


def old_names(value: Any) -> Any:
    """Return a value of JSON with the keys that earlier fingerprints have."""
    if isinstance(value, Mapping):
        return {old_name(key): old_names(item) for key, item in value.items()}
    return [old_names(item) for item in value] if isinstance(value, list | tuple) else value


def canonical(value: Any) -> str:
    """Return JSON with sorted keys, and numbers in the shortest form that reads back as the same bits."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)


def tensor_digest(tensor: torch.Tensor) -> str:
    raw = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return sha(str(tensor.dtype), str(tuple(tensor.shape)), raw)


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a model folder and of the models inside it, such as a generator, by file and name."""
    parts = {file: load_file(file) for file in sorted(folder.rglob("*.safetensors"))}
    parts |= {file: read_graph(file) for file in sorted(folder.rglob("*.onnx"))}
    return {f"{file.relative_to(folder)}:{name}": x for file, part in parts.items() for name, x in part.items()}


def read_graph(file: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of an ONNX graph."""
    tensors = onnx.load(file).graph.initializer
    return {tensor.name: torch.from_numpy(onnx.numpy_helper.to_array(tensor).copy()) for tensor in tensors}


def content(folder: Path) -> str:
    """Return a digest of the tensors of a folder that does not depend on their names and files."""
    return sha(*sorted(tensor_digest(tensor) for tensor in read_tensors(folder).values()))


def config_lines(file: Path) -> list[str]:
    """Return the keys and values of a config.json, without versions and checksums, one per line."""

    def walk(value: Any, path: str) -> Iterator[str]:
        if isinstance(value, dict) and value:
            for key, item in value.items():
                if not re.search("version|date|sha256", key):
                    yield from walk(item, f"{path}.{key}" if path else key)
        else:
            yield old_name(f"{path}={canonical(value)}")

    return sorted(walk(json.loads(file.read_text(encoding="utf-8")), ""))


def series(run: pt.Run) -> Entries:
    """Yield the numbers of each metric of a run, step by step: losses, learning rates, gradient norms, scores."""
    found: dict[str, list[str]] = {}
    for line in run.metrics():
        for name, number in line.items():
            if name not in OF_TIME:
                found.setdefault(old_name(name), []).append(float(number).hex())
    yield from found.items()


def rows_of(rows: Iterable[Row]) -> list[str]:
    """Return each row as canonical JSON."""
    return [canonical(old_names(row)) for row in rows]


def vectors_of(vectors: np.ndarray[Any, Any]) -> list[str]:
    """Return a digest of each vector, and its first three numbers."""
    return [" ".join([sha(row.tobytes()), *(float(x).hex() for x in row[:3])]) for row in vectors]


def exported(model: pt.Run | str, out: Path) -> Entries:
    """Yield what is in the exported folder of a model: names and contents of tensors, configuration, tokenizer."""
    export(model, out)
    tensors = dict(sorted(read_tensors(out).items()))
    yield "tensor names", list(tensors)
    yield "weights", sha(*(tensor_digest(tensor) for tensor in tensors.values()))
    yield "config.json", config_lines(out / "config.json")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        yield name, sha(canonical(json.loads((out / name).read_text(encoding="utf-8"))))


# -- Sections: each yields names and values ----------------------------------------------------------------------------------


def environment(work: Work) -> Entries:
    """Yield the machine and the versions of the libraries, on which the numbers depend."""
    yield "machine", f"{platform.machine()}, Python {platform.python_version()}"
    for name in ("torch", "numpy", "tokenizers", "onnxruntime", "onnx", "safetensors"):
        yield name, version(name)


def presets(work: Work) -> Entries:
    """Yield the shape, number of parameters and objective of each preset, large ones included."""
    for row in work.presets:
        facts = ", ".join(str(row[key]) for key in ("family", "shape", "parameters", "objective"))
        yield row["preset"], old_name(facts)


def tokenizers(work: Work) -> Entries:
    """Yield a trained tokenizer of each kind, and how it splits a text."""
    for name, kind in TOKENIZERS.items():
        folder = work.new(f"tokenizer of {name}")
        train_tokenizer(work.folder / "text.txt", kind, VOCABULARY, folder)
        trained = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        if trained["model"]["type"] == "Unigram":
            del trained["model"]  # not the same twice; see above
        else:
            yield f"{name}/split", rows_of([split_text(folder, f"{work.prompts[0]} Éa, ドx!")])
        yield f"{name}/tokenizer.json", sha(canonical(trained))


def pretraining(work: Work) -> Entries:
    """Yield the losses, weights and configuration of each tiny preset, trained with its own objective."""
    for row in work.presets:
        name = row["preset"]
        if not name.endswith("-tiny"):
            continue
        run = work.pretrained(name)
        entries = [*series(run), ("parameters", content(run.folder))]
        if in_transformers(run):
            entries += exported(run, work.new(f"{name} exported"))
        else:  # nothing can be exported, and tensors are compared by content, whatever their names
            entries += [("config.json", config_lines(run.folder / "config.json"))]
        yield from ((f"{name}/{key}", value) for key, value in entries)


def objectives(work: Work) -> Entries:
    """Yield the losses and weights of models trained with other objectives, and of an adapted model."""
    for name, (preset, objective, kind) in OBJECTIVES.items():
        model = write_preset(work.folder, preset, VOCABULARY)
        run = pretrain(model, work.data(kind), work.new(name), FEW_STEPS, objective)
        yield from ((f"{name}/{key}", value) for key, value in series(run))
        yield f"{name}/parameters", content(run.folder)
    run = adapt(work.pretrained("bert-tiny"), work.folder / "pairs.fr.txt", work.new("adapted"), FEW_STEPS)
    yield from ((f"adapt/{key}", value) for key, value in series(run))
    yield "adapt/parameters", content(run.folder)


def bundled(work: Work) -> Entries:
    """Yield vectors, answers and weights of the bundled model."""
    for layer in (0, 1, 5, -1):
        for name, pooling in POOLINGS.items():
            yield f"vectors/layer {layer}/{name}", vectors_of(embed(BUNDLED, TEXTS, layer, pooling))
    yield "fill", rows_of(pt.fill(BUNDLED, GAPS))
    yield "ask", rows_of(ask(BUNDLED, TEXTS, "It was [MASK].", ["good", "bad"]))
    yield from exported(BUNDLED, work.new("bundled exported"))


def answered(run: pt.Run, dev: Path) -> Entries:
    """Yield the metrics, parameters and predictions of a fine-tuned model."""
    yield from series(run)
    yield "parameters", content(run.folder)
    yield "predictions", rows_of(pt.predict(run, dev))


def tasks(work: Work) -> Entries:
    """Yield the metrics and predictions of fine-tuned models: every task, every strategy, several families."""
    start = work.pretrained("bert-tiny")
    for name, (objective, kind) in TASKS.items():
        train, dev = work.train_and_dev(kind)
        run = finetune(start, train, dev, work.new(f"task {name}"), objective)
        yield from ((f"{name}/{key}", value) for key, value in answered(run, dev))
    train, dev = work.train_and_dev("labels")
    for strategy in STRATEGIES:
        run = finetune(start, train, dev, work.new(f"strategy {strategy}"), CLASSIFY, strategy)
        yield from ((f"strategy {strategy}/{key}", value) for key, value in answered(run, dev))
    for preset in OTHER_CLASSIFIERS:
        run = finetune(work.pretrained(preset), train, dev, work.new(f"{preset} classifier"), CLASSIFY, steps=3)
        yield from ((f"{preset}/{key}", value) for key, value in answered(run, dev))
    for preset in ("gpt2-tiny", "t5-tiny"):
        train, dev = work.train_and_dev("generation")
        run = finetune(work.pretrained(preset), train, dev, work.new(f"{preset} text to text"), TEXT_TO_TEXT)
        yield from ((f"{preset} text to text/{key}", value) for key, value in answered(run, dev))
    several = [work.train_and_dev(kind) for kind in ("labels", "scores")]
    train_files, dev_files = ({"mood": str(a), "grade": str(b)} for a, b in zip(*several, strict=True))
    run = finetune(start, train_files, dev_files, work.new("several tasks"), SEVERAL_TASKS)
    yield from ((f"several tasks/{key}", value) for key, value in series(run))
    yield "several tasks/parameters", content(run.folder)


def generation(work: Work) -> Entries:
    """Yield the texts of generative models, and the probabilities that they give to answers."""
    for preset in GENERATIVE:
        for name, decoding in DECODING.items():
            yield f"{preset}/{name}", rows_of(generate(work.pretrained(preset), work.prompts, decoding))
        run, answers = work.pretrained(preset), work.prompts[2:4]
        yield f"{preset}/ask", rows_of(ask(run, work.prompts, "Ba {text} [MASK]", answers))
    for preset in TRANSLATORS:
        for beams in (1, 3):
            yield f"{preset}/{beams} beams", rows_of(translate(work.pretrained(preset), work.prompts, beams))


def compression(work: Work) -> Entries:
    """Yield the predictions and contents of a quantized, a pruned and a distilled classifier."""
    start = work.classifier()
    train, dev = work.train_and_dev("labels")
    for name, settings in QUANTIZATION.items():
        run = quantize(start, train, dev, work.new(f"quantized {name}"), settings)
        yield f"quantize {name}/predictions", rows_of(pt.predict(run, dev))
        yield f"quantize {name}/parameters", content(run.folder)
    for name, settings in PRUNING.items():
        run = prune(start, train, dev, work.new(f"pruned {name}"), settings)
        yield f"prune {name}/predictions", rows_of(pt.predict(run, dev))
        yield f"prune {name}/parameters", content(run.folder)
    run = distill(start, train, dev, work.new("distilled"))
    yield from ((f"distill/{key}", value) for key, value in answered(run, dev))
    graph = work.new("graph")
    export(start, graph, to="onnx")
    yield "onnx/predictions", rows_of(pt.predict(graph, dev))


SECTIONS: dict[str, Callable[[Work], Entries]] = {
    section.__name__: section
    for section in (environment, presets, tokenizers, pretraining, objectives, bundled, tasks, generation, compression)
}


def fingerprint(folder: Path, only: Sequence[str]) -> dict[str, Value]:
    """Return the fingerprint of this checkout, or of some of its sections."""
    found: dict[str, Value] = {}
    began = reported = time.monotonic()
    work = Work(folder)
    for section, entries in SECTIONS.items():
        if only and section not in only:
            continue
        last = ""
        for name, value in entries(work):
            found[f"{section}/{name}"] = value
            now, part = time.monotonic(), name.split("/")[0]
            if part != last and now - reported > 0.05:
                print(f"{now - began:6.1f} s  {section}/{part}", file=sys.stderr, flush=True)
                reported = now
            last = part
    print(f"{time.monotonic() - began:6.1f} s  {len(found)} entries", file=sys.stderr)
    return found


# -- Comparison --------------------------------------------------------------------------------------------------------------


def difference(before: Value, after: Value) -> str:
    """Return a short description of how two values differ."""
    if isinstance(before, str) or isinstance(after, str):
        return f"{str(before)[:200]} → {str(after)[:200]}"
    try:
        numbers = [(float.fromhex(a), float.fromhex(b)) for a, b in zip(before, after, strict=True)]
    except ValueError:  # not numbers, or not as many
        gone, new = [line for line in before if line not in after], [line for line in after if line not in before]
        shown = [*(f"- {line[:300]}" for line in gone[:5]), *(f"+ {line[:300]}" for line in new[:5])]
        counts = f"{len(gone)} of {len(before)} values are gone, {len(new)} of {len(after)} are new"
        return "\n    ".join([counts if shown else "in another order", *shown])
    places = [place for place, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    a, b = numbers[places[0]]
    largest = max(abs(a - b) for a, b in numbers)
    return f"{len(places)} of {len(numbers)} numbers differ, by at most {largest:.3g}; number {places[0]}: {a} → {b}"


def compare(before: Path, after: Path, only: Sequence[str]) -> int:
    """Print what differs between two fingerprints; return how many entries do."""
    old, new = (json.loads(path.read_text(encoding="utf-8")) for path in (before, after))
    names = [name for name in dict.fromkeys([*old, *new]) if not only or name.startswith(tuple(only))]
    different = 0
    for name in names:
        if old.get(name) == new.get(name):
            continue
        different += 1
        if name not in old or name not in new:
            print(f"{name}: only in {before if name in old else after}")
        else:
            print(f"{name}: {difference(old[name], new[name])}")
    print(f"{different} of {len(names)} entries differ" if different else f"all {len(names)} entries are equal")
    return different


def main() -> None:
    parser = argparse.ArgumentParser(usage=(__doc__ or "").removeprefix("usage: "))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--compare", type=Path, nargs=2)
    parser.add_argument("--only", nargs="+", default=[])
    options = parser.parse_args()
    if not options.compare and (unknown := [name for name in options.only if name not in SECTIONS]):
        parser.error(f"there is no section {unknown[0]!r}; choose from {', '.join(SECTIONS)}")
    if options.compare:
        sys.exit(1 if compare(*options.compare, options.only) else 0)
    os.environ |= {**QUIET, "TOKENIZERS_PARALLELISM": "false"}
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"  # nothing of an earlier run is reused
        found = json.dumps(fingerprint(Path(folder), options.only), indent=1, ensure_ascii=False)
    print(found)
    if options.out:
        options.out.write_text(f"{found}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
