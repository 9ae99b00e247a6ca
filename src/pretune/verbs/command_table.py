"""The table of commands: for each verb its name on the command line, its stage, and one line of help.

`pretune --help` shows this table without importing a verb; a command imports only its own verb.
"""

from __future__ import annotations

from typing import NamedTuple

from pretune.runtime.errors import PretuneError, quote, suggest

STAGES = ("Data", "Pretraining", "Tasks", "Evaluation", "Compression", "Use")


class Command(NamedTuple):
    """A command of `pretune`: its stage in the overview, the name of its function, and one line of help."""

    stage: str
    verb: str
    summary: str  # fits on one line of a terminal; the docstring of the verb is the long help


COMMANDS = {
    "tokenizer train": Command("Data", "train_tokenizer", "Train a tokenizer on a corpus of any size."),
    "tokenizer inspect": Command("Data", "inspect_tokenizer", "Show how a tokenizer splits texts."),
    "prepare": Command("Data", "prepare", "Tokenize a corpus into a store to train on."),
    "phrases": Command("Data", "phrases", "Find collocations in a store, for whole-phrase masking."),
    "histories": Command("Data", "histories", "Convert user-item interactions to text, one user per line."),
    "convert": Command("Data", "convert", "Convert the official files of a suite to tables."),
    "import": Command("Data", "import_model", "Convert word vectors or an ELMo checkpoint to a model folder."),
    "pretrain": Command("Pretraining", "pretrain", "Pretrain a model on raw text within a training budget."),
    "adapt": Command("Pretraining", "adapt", "Continue pretraining a model on your own text."),
    "vectors train": Command("Pretraining", "train_vectors", "Train word vectors."),
    "quickstart": Command("Tasks", "quickstart", "Demonstrate transfer learning with few labels, offline."),
    "label": Command("Tasks", "label", "Label texts by hand, the most informative first."),
    "finetune": Command("Tasks", "finetune", "Fine-tune a model on labeled examples of one or more tasks."),
    "tune": Command("Tasks", "tune", "Search for the best hyperparameters of fine-tuning."),
    "ulmfit": Command("Tasks", "ulmfit", "Fine-tune a recurrent language model to classify (ULMFiT)."),
    "evaluate": Command("Evaluation", "evaluate", "Evaluate on a benchmark suite, or measure perplexity."),
    "compare": Command("Evaluation", "compare", "Test whether one model is better than another."),
    "study": Command("Evaluation", "study", "Compare recipes under one budget, or suggest one."),
    "contamination": Command("Evaluation", "contamination", "Measure the overlap of test files with a store."),
    "attention": Command("Evaluation", "attention", "Draw attention heads, and measure what they attend to."),
    "similarity": Command("Evaluation", "similarity", "Compare the layers of one or two models (CKA, SVCCA)."),
    "project": Command("Evaluation", "project", "Draw the embeddings of texts in the plane (PCA, t-SNE)."),
    "probe": Command("Evaluation", "probe", "Measure what each layer of a model encodes, with controls."),
    "bench": Command("Evaluation", "bench", "Compare a model's speed with transformers and ONNX Runtime."),
    "roofline": Command("Evaluation", "roofline", "Measure the arithmetic and memory speed of a device."),
    "compress": Command("Compression", "compress", "Compress a fine-tuned model to a target, trying pipelines."),
    "distill": Command("Compression", "distill", "Distill one or more teachers into a smaller student."),
    "prune": Command("Compression", "prune", "Prune layers, heads, feed-forward units, weights, or tokens."),
    "quantize": Command("Compression", "quantize", "Quantize a model, and compare it with the original."),
    "predict": Command("Use", "predict", "Predict with a fine-tuned model, or with an ensemble."),
    "embed": Command("Use", "embed", "Compute an embedding for each text."),
    "search": Command("Use", "search", "Find the texts closest in meaning to a query."),
    "recommend": Command("Use", "recommend", "Recommend items to users, with BERT4Rec."),
    "fill": Command("Use", "fill", "Predict the words at [MASK] tokens."),
    "generate": Command("Use", "generate", "Generate text from prompts."),
    "ask": Command("Use", "ask", "Prompt a language model with a cloze template."),
    "translate": Command("Use", "translate", "Translate texts with an encoder-decoder."),
    "neighbors": Command("Use", "neighbors", "Find words (not texts) used like a word in its context."),
    "serve": Command("Use", "serve", "Serve models over HTTP, with a page to try them."),
    "export": Command("Use", "export", "Export a model for transformers, ONNX Runtime, and others."),
    "show": Command("Use", "show", "Show presets, objectives, families, suites, or a folder."),
    "doctor": Command("Use", "doctor", "Check what this machine can run, and how to get the rest."),
}
GROUPS = {
    "tokenizer": "Train or inspect a tokenizer.",
    "vectors": "Train word vectors.",
}


def requested_command(arguments: list[str]) -> str | None:
    """Return the name of the command that command-line arguments begin with, or None.

    >>> requested_command(["tokenizer", "train", "corpus/"])
    'tokenizer train'
    """
    return next((name for name in COMMANDS if arguments[: len(name.split())] == name.split()), None)


def check_command(arguments: list[str]) -> None:
    """Raise an error if command-line arguments begin with the name of a command that does not exist."""
    words = arguments[: 2 if arguments[:1] and arguments[0] in GROUPS else 1]
    if not words or words[-1].startswith("-") or words in ([name] for name in GROUPS):
        return
    name = " ".join(words)
    known = [command for command in COMMANDS if command.startswith(f"{words[0]} ")] or [*COMMANDS, *GROUPS]
    raise PretuneError(f"There is no command {quote(name)}; {suggest(name, known, 'see `pretune --help`')}")
