"""Options that several verbs share, each with its type and its help text.

A verb annotates a parameter with a shared option, as in `seed: opt.Seed = 0`, and sets its own default. Its docstring describes
only the options of its own; the `verb` decorator adds the text of the shared ones, and `--help` shows them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from pretune.runtime.recipe import InMemoryTable, LoadedObject, RecipeSection
from pretune.training import recipe_sections
from pretune.training.recipe_sections import BackTranslation, Batching, Budget, Monitoring, Optimizer, Schedule

if TYPE_CHECKING:
    from pretune.models.open_model import ModelHandle as ModelHandle
    from pretune.text.corpus.in_memory_tables import Table as Table
    from pretune.text.store.store import Store as OpenStore
    from pretune.text.tokenizers.tokenizer import Tokenizer as LoadedTokenizer
    from pretune.training.callbacks import Callback
    from pretune.training.run_folder import Run as Run

    Models: TypeAlias = str | Path | ModelHandle | Sequence[str | Path | ModelHandle]
else:  # the classes themselves would load torch, which `--help` does without
    OpenStore = LoadedTokenizer = ModelHandle = Run = Callback = LoadedObject
    Table = InMemoryTable  # the verb decorator saves tables to files, so that verbs see paths only
    Models = str | Path | ModelHandle  # on the command line, further models come after the first, among the inputs

Paths: TypeAlias = Sequence[str | Path | Table] | str | Path | Table
TaskFiles: TypeAlias = (
    str | Path | Table | Sequence[str] | Mapping[str, str | Path | Table]
)  # several: NAME=FILE, or by name


def _keys(section: type[RecipeSection], without: Mapping[type[RecipeSection], tuple[str, ...]] | None = None) -> str:
    """Return the names of the keys of a recipe section as text for help, except those that `without` lists for it."""
    left_out = (without or {}).get(section, ())
    return ", ".join(key.name for key in fields(section) if key.name not in left_out)  # type: ignore[arg-type]


# -- models ---------------------------------------------------------------------------------------------------------

Model = Annotated[str | Path | ModelHandle, "Run folder or model folder."]
ModelOrPreset = Annotated[
    str | Path | ModelHandle, "Run folder, model folder, or preset (randomly initialized; needs --tokenizer)."
]
FineTuned = Annotated[str | Path | ModelHandle, "Fine-tuned run folder or model folder."]
FineTunedModels = Annotated[Models, "Fine-tuned run folder or model folder."]
PresetTokenizer = Annotated[str | Path | None, "Tokenizer to use with a preset."]
IgnoreMismatched = Annotated[
    bool,
    "Load a checkpoint that does not match the model exactly: ignore unknown keys and tensors, and randomly initialize tensors "
    "that are missing or have another shape.",
]
WordVectors = Annotated[
    str | Path | None, "File of pretrained word vectors (word2vec, GloVe, fastText) to initialize word embeddings from."
]
Pooling = Annotated[
    str | None,
    "Pooling to use instead of the model's own, which is mean unless it was trained with another: mean, max, cls (the first "
    "token), last, mean_sqrt_len, or weighted_mean. Join several with +.",
]

ModelFolder = Annotated[str | Path, "Folder for the model."]

# -- text -----------------------------------------------------------------------------------------------------------

Corpus = Annotated[
    Paths,
    "Files, folders, or glob patterns of text: .txt, .jsonl, .csv, .tsv, or .parquet, each uncompressed or as .gz, .bz2, "
    ".zst, .xz.",
]
TextInputs = Annotated[
    Paths,
    "Texts, or files or folders of them: .txt (one text per line), .csv, .tsv, .jsonl, or .parquet.",
]
Store = Annotated[OpenStore | str | Path, "Token store made by `pretune prepare`."]
Tokenizer = Annotated[LoadedTokenizer | str | Path, "Tokenizer folder or file, or the name of a bundled model."]
Language = Annotated[
    str, "Language of the sentence splitter (en, ru, ko, …), or `lines` if there is one sentence per line."
]
TextLanguage = Annotated[
    str | None,
    "Language of the texts, for a model with language embeddings (XLM), such as fr; by default the one saved with the model.",
]
SplitBy = Annotated[
    Literal["auto", "line", "blank-line", "file"],
    "How .txt files are split into documents: one per line, separated by blank lines, or one per file; auto infers it.",
]
TextField = Annotated[str | None, "Field or column with the text in .jsonl, .csv, .tsv, and .parquet files."]
EncodingErrors = Annotated[
    Literal["strict", "replace"],
    "How to handle invalid UTF-8: report an error (strict), or replace the bytes with U+FFFD.",
]

# -- labeled data ---------------------------------------------------------------------------------------------------

TrainFile = Annotated[str | Path | Table, "Labeled training examples: .csv, .tsv, .jsonl, or .parquet."]
DevFile = Annotated[str | Path | Table | None, "Labeled examples to evaluate on."]
Text = Annotated[str | None, "Column with the text."]
Pair = Annotated[str | None, "Column with the second text of a pair."]
Label = Annotated[str | None, "Column with the label."]
Columns = Annotated[Mapping[str, str] | None, "Columns with the task's other inputs, e.g. --columns.choices options."]
DropInvalid = Annotated[
    bool,
    "Drop examples without a text or label, and those whose answer or span does not occur in the text, instead of reporting an "
    "error.",
]
SafeCsv = Annotated[
    bool,
    "Prefix cells of .csv and .tsv files that start with =, +, -, @, or a tab with a single quote, so that spreadsheets do not "
    "evaluate them as formulas.",
]

# -- user histories -------------------------------------------------------------------------------------------------

UserColumn = Annotated[str | None, "Column with the user; inferred from its name by default."]
ItemColumn = Annotated[
    str | None, "Column with the item, or with all items of a user; inferred from its name by default."
]
TimeColumn = Annotated[
    str | None,
    "Column with the time, to sort by; inferred from its name by default. Without one, rows keep their order.",
]

# -- training -------------------------------------------------------------------------------------------------------

RunFolder = Annotated[str | Path, "Folder for the new run."]
Objective = Annotated[
    str,
    "Task to train for: classify, classify(multi_label=true), tag, coref, answer, regress, choose, match, rank, rerank, contrast, entity, generate, vqa, or "
    "prompt; with options or layers, as in classify(pooling=mean) or classify on mix/bilstm; with an auxiliary loss, as in "
    "classify+0.5*lm; for several tasks, one objective for all or one per task, as in a: classify | b: generate.",
]
Strategy = Annotated[
    str | None,
    "What is trained: full, frozen, features, contrastive, top(4), gradual, or lora(8), combined by + with reset(1), freelb(3), "
    "smart(1), sparse(0.8), or int8. auto, the default unless training settings are given, compares some by cross-validation and keeps the best.",
]
Epochs = Annotated[float, "Passes over the training data."]
SuitableEpochs = Annotated[
    float | None, "Passes over the training data; by default 3, or more for few examples, for at least 200 steps."
]
Limits = Annotated[Budget | None, "Training budget instead of --epochs."]
TextLimits = Annotated[Budget | None, "Training budget; training ends when the first limit is reached."]
BackTranslationSettings = Annotated[
    BackTranslation | None,
    "Back-translation: mix parallel texts with texts of the target language that a model of the reverse direction translates; "
    f"settings: {_keys(BackTranslation)}.",
]
OptimizerSettings = Annotated[Optimizer | None, f"Optimizer settings: {_keys(Optimizer)}."]
ScheduleSettings = Annotated[Schedule | None, f"Learning rate schedule settings: {_keys(Schedule)}."]
Batch = Annotated[Batching | None, f"Batch settings: {_keys(Batching)}."]
RowBatch = Annotated[Batching | None, f"Batch settings: {_keys(Batching, recipe_sections.ON_TEXT)}."]
TextBatch = Annotated[Batching | None, f"Batch settings: {_keys(Batching, recipe_sections.ON_ROWS)}."]
AnyMonitor = Annotated[Monitoring | None, f"Logging, evaluation, and checkpoint settings: {_keys(Monitoring)}."]
RowMonitor = Annotated[
    Monitoring | None, f"Logging, evaluation, and checkpoint settings: {_keys(Monitoring, recipe_sections.ON_TEXT)}."
]
TextMonitor = Annotated[
    Monitoring | None, f"Logging, evaluation, and checkpoint settings: {_keys(Monitoring, recipe_sections.ON_ROWS)}."
]
Callbacks = Annotated[
    Sequence[str | Callback],
    "Callbacks of the training loop, by the names under which installed packages register them; in Python, instances of "
    "pretune.Callback.",
]
ClassWeight = Annotated[
    str | Sequence[str] | Mapping[str, float] | None,
    "Weights of the classes in the loss: balanced gives all classes the same total weight, none the same weight to all examples; "
    "or LABEL=WEIGHT for some labels, e.g. spam=5, and 1 for the others.",
]
Metric = Annotated[
    str | None,
    "Primary metric, by which seeds, trials, and evaluations are compared: one that the task reports, or a registered one, such "
    "as macro_f1, weighted_f1, balanced_accuracy, or mcc.",
]
Seed = Annotated[int, "Random seed."]
FromScratch = Annotated[
    bool, "Train from randomly initialized weights instead of the model's, to measure what pretraining contributes."
]
Deterministic = Annotated[
    bool, "Use deterministic kernels, so that one seed gives bit-identical results on one machine; slower on a GPU."
]
Resume = Annotated[bool, "Resume the interrupted run in --out."]
Device = Annotated[str | None, "Device to run on, cpu or cuda; a GPU is used by default if there is one."]
Devices = Annotated[
    int,
    "Number of devices of this machine to distribute the runs over, with one process per device (processes share a GPU if "
    "there are fewer); on a CPU, the number of processes.",
]

# -- inference ------------------------------------------------------------------------------------------------------

Executor = Annotated[
    Literal["local", "ray"],
    "Run on this machine (local) or on a Ray cluster (ray) at RAY_ADDRESS; all machines of the cluster must see the files.",
]
Processes = Annotated[int, "Number of CPU processes to distribute the work over."]
Engine = Annotated[
    Literal["auto", "torch", "onnxruntime"],
    "Engine that computes the model on a CPU: torch, onnxruntime, or auto, the faster one, which is measured once for each model and "
    "machine, and remembered. Outputs differ in their last digits.",
]
NumBeams = Annotated[int, "Number of beams of beam search; 1 is greedy decoding."]
LengthPenalty = Annotated[
    float, "Exponent of the length by which beam scores are divided; larger values favor longer texts."
]

# -- analysis -------------------------------------------------------------------------------------------------------

AnalysisFolder = Annotated[str | Path | None, "Folder for the tables, the figures (.svg and .png), and report.html."]

# -- suites ---------------------------------------------------------------------------------------------------------

SuiteFolder = Annotated[str | Path, "Folder with the suite's official files."]
Tasks = Annotated[Sequence[str], "Tasks of the suite to use; all by default."]
