"""Model cards: a README.md about a model, which states only facts from its files and from the run that trained it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, prod
from pathlib import Path
from string import Template
from typing import Any

import yaml
from safetensors import safe_open

from pretune.backbones.onnx_runtime import GRAPH, MOBILE_GRAPH
from pretune.families import find_family
from pretune.models.hf_config import check_section, config_labels, published_class
from pretune.models.sentence_transformers import MODULES, TRANSFORMER, read_optional
from pretune.models.torch_export import PROGRAM
from pretune.nn.sentence_embedding import TextEmbedding
from pretune.objectives import OBJECTIVES, parse_objective, task_names
from pretune.runtime.atomic_io import write_bytes
from pretune.runtime.checksummed_safetensors import reading_tensors
from pretune.runtime.errors import PretuneError
from pretune.runtime.output_paths import RECIPE
from pretune.runtime.parsing import parse_yaml, validate_schema

LARGEST_CARD = 1 << 20  # bytes to read at most
CARD, CONFIG, TOKENIZER_CONFIG = "README.md", "config.json", "tokenizer_config.json"
BACKBONE_PURPOSE = ("It gives a vector for each token of a text, and has no head for a task", "feature-extraction")
# Maps our names of metrics to those of the Hub, where they differ.
METRICS = {"spearman": "spearmanr", "pearson": "pearsonr", "matthews": "matthews_correlation"}
MAX_LABELS = 20  # the most labels to list
TEXT, OTHER = "The train was late.", "We waited an hour for the train."
PRETUNE = {
    "embed": """vectors = [row["vector"] for row in pretune.embed($name, [$text, $other])]
print(len(vectors), len(vectors[0]))""",
    "predict": """for row in pretune.predict($name, [$text, $other]):
    print(row)""",
    "fill": """print(pretune.fill($name, [$masked])[0]["filled"])""",
    "generate": """print(pretune.generate($name, ["The train"], max_new_tokens=20)[0])""",
    "load": """model = pretune.load($name)
print(model.family, model.config)""",
}
SENTENCE_TRANSFORMERS = """
from sentence_transformers import SentenceTransformer

model = SentenceTransformer($name)
vectors = model.encode([$text, $other])
print(model.similarity(vectors, vectors))
"""
ONNX_RUNTIME = """
import onnxruntime
from transformers import AutoTokenizer

session = onnxruntime.InferenceSession($graph)
inputs = AutoTokenizer.from_pretrained($name)([$text, $other], padding=True, return_tensors="np")
names = [entry.name for entry in session.get_inputs()]
print([output.shape for output in session.run(None, {name: inputs[name] for name in names})])
"""
TORCH = """
import torch
from transformers import AutoTokenizer

program = torch.export.load($program).module()
inputs = AutoTokenizer.from_pretrained($name)([$text, $other], padding=True, return_tensors="pt")
ids, mask = inputs["input_ids"], inputs["attention_mask"]
segments = inputs.get("token_type_ids", torch.zeros_like(ids))
attends_to_all = torch.zeros_like(ids)  # 1 for tokens with global attention (Longformer)
print([output.shape for output in program(ids, mask, segments, attends_to_all)])
"""
LIBRARIES = {"onnxruntime": "onnxruntime", "torch.export": "torch"}  # by the engine in config.json
# Maps tasks of pipelines to the suffixes of the classes that they accept.
PIPELINES = {
    "text-classification": ("ForSequenceClassification",),
    "token-classification": ("ForTokenClassification",),
    "fill-mask": ("ForMaskedLM", "WithLMHeadModel"),
    "text-generation": ("LMHeadModel", "ForCausalLM"),
}
TRANSFORMERS = {
    "pipeline": """
from transformers import pipeline

run = pipeline($task, model=$name)
print(run($text))
""",
    "fill-mask": """
from transformers import pipeline

fill = pipeline("fill-mask", model=$name)
print(fill($masked))
""",
    "text-generation": """
from transformers import pipeline

generate = pipeline("text-generation", model=$name)
print(generate("The train", max_new_tokens=20))
""",
    "load": """
from transformers import AutoTokenizer, $kind

tokenizer = AutoTokenizer.from_pretrained($name)
model = $kind.from_pretrained($name)
""",
    "states": """print(model(**tokenizer($text, return_tensors="pt"))[0].shape)
""",
    "ForConditionalGeneration": """written = model.generate(**tokenizer($text, return_tensors="pt"), max_new_tokens=20)
print(tokenizer.batch_decode(written, skip_special_tokens=True))
""",
    "ForMultipleChoice": """inputs = tokenizer([$text] * 2, ["Nobody was.", $other], padding=True, return_tensors="pt")
print(model(**{name: value[None] for name, value in inputs.items()}).logits)
""",
    "DoubleHeadsModel": """outputs = model(**tokenizer($text, $other, return_tensors="pt"))
print(outputs.mc_logits)  # the score of one choice
""",
    "ForQuestionAnswering": """outputs = model(**tokenizer("Who waited?", $other, return_tensors="pt"))
print(outputs[0].shape)
""",
}


@dataclass(frozen=True)
class TrainingHistory:
    """The training history of a model for its card: recipe, data and results, as recorded in its run folder."""

    verb: str  # the command that trained it
    recipe: Mapping[str, Any]
    results: Mapping[str, Any]
    date: str = ""  # when the run started

    @property
    def scores(self) -> dict[str, float]:
        """The scores on held-out examples or text, by the name of the metric."""
        found = {name.removeprefix("dev/"): x for name, x in self.results.items() if name.startswith("dev/")}
        return {name: x for name, x in found.items() if isinstance(x, int | float) and isfinite(x)}

    @property
    def scored_on(self) -> str:
        """A description of the data on which the model was scored."""
        source = file_names(self.recipe.get("train")) or file_names(self.recipe.get("data"))
        held_out = f"a held-out part of {source}" if source else "held-out data"
        return file_names(self.recipe.get("dev")) or held_out


class CardModel:
    """A model folder with the properties that its model card reports."""

    def __init__(self, folder: Path, exported: bool) -> None:
        self.folder, self.exported = folder, exported
        self.config = read_optional(folder / CONFIG)
        check_section(self.config, folder / CONFIG)
        self.name = folder.resolve().name
        self.ours: Mapping[str, Any] = self.config.get("pretune", {})
        self.architecture = published_class(self.config)
        objective = self.ours.get("objective", "")
        self.kinds = [part.kind for part in parse_objective(objective).objectives] if objective else []

    @property
    def library(self) -> str:
        """The name of the library that the model folder is written for."""
        if (self.folder / MODULES).is_file():
            return "sentence-transformers"
        if "engine" in self.ours:
            return LIBRARIES.get(self.ours["engine"], "pretune")
        return "transformers" if self.exported else "pretune"

    @property
    def purpose(self) -> tuple[str, str]:
        """A description of what the model does, and its `pipeline_tag` on the Hugging Face Hub."""
        if not self.kinds:
            return BACKBONE_PURPOSE
        if known := next(filter(None, (OBJECTIVES[kind].purpose for kind in self.kinds)), None):
            return known  # type: ignore[no-any-return]
        return f"It was trained with the objective `{self.ours['objective']}`", ""

    @cached_property
    def labels(self) -> list[str]:
        """The class labels of the model; an empty list for a regression model."""
        return config_labels(self.config, self.folder / CONFIG) if "regress" not in self.kinds else []

    @cached_property
    def parameters(self) -> int:
        """The number of parameters, or 0 if unknown, as for an ONNX graph or quantized weights."""
        if "engine" in self.ours:  # the network is in a graph or program, with at most the heads beside it
            return 0
        count = 0
        for file in self.folder.glob("*.safetensors"):
            with reading_tensors(file), safe_open(file, framework="numpy") as content:
                for tensor in map(content.get_slice, content.keys()):
                    if not tensor.get_dtype().startswith(("F", "BF")):
                        return 0
                    count += prod(tensor.get_shape())
        return count

    @property
    def mask(self) -> str:
        """The mask token of the model's tokenizer, such as [MASK]."""
        token = read_optional(self.folder / TOKENIZER_CONFIG).get("mask_token", "[MASK]")
        return str(token.get("content", "[MASK]") if isinstance(token, Mapping) else token)


def write_card(
    folder: Path,
    history: TrainingHistory | None = None,
    *,
    exported: bool = False,
    source: Path | None = None,
    license: str | None = None,
) -> None:
    """Write the model card, README.md, of a folder with config.json and weights.

    `exported` is true for a folder that other libraries load. `source` is the folder that the model was exported from:
    the license and the language in the card there are kept, unless `license` is given.
    """
    subject = CardModel(folder, exported)
    before = front_matter(source / CARD) if source is not None else {}
    license = license or before.get("license")
    sections = [f"# {subject.name}", description(subject, source)]
    if history is not None:
        sections += ["## Training", training(history)]
        sections += ["## Scores", score_table(history)] if history.scores else []
    sections += ["## Use", *usage(subject)]
    no_license = "No license was given for this model. `pretune export --license NAME` states one."
    sections += ["## License", license or no_license]
    sections += ["## Limitations", limitations(subject, history)]
    about = yaml.safe_dump(metadata(subject, history, license, before), sort_keys=False, allow_unicode=True)
    body = "\n\n".join(sections)
    write_bytes(folder / CARD, f"---\n{about}---\n\n{body}\n".encode())


def metadata(
    subject: CardModel, history: TrainingHistory | None, license: str | None, before: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the metadata of a model card for the Hugging Face Hub: the fields of its YAML front matter that are known.

    `before` is the metadata of an earlier card of the model, of which only the language is kept.
    """
    # English is the default of the option, so that it does not tell the language of the text.
    written = str(history.recipe.get("language", "")) if history is not None else ""
    language = before.get("language") or ("" if written in ("en", "lines") else written)
    tag = subject.purpose[1]
    tags = ["pretune", *([subject.library] if subject.library != "pretune" else [])]
    tags += ["feature-extraction"] if tag == "sentence-similarity" else []
    found = {
        "language": language,
        "license": license,
        "library_name": subject.library,
        "pipeline_tag": tag,
        "tags": tags,
    }
    if history is not None and history.scores and history.verb == "finetune":
        metrics = [{"type": METRICS.get(name, name), "value": value} for name, value in history.scores.items()]
        found["metrics"] = sorted({metric["type"] for metric in metrics})
        dataset = {"type": "other", "name": history.scored_on.replace("`", "")}
        result = {"task": {"type": tag or "other"}, "dataset": dataset, "metrics": metrics}
        found["model-index"] = [{"name": subject.name, "results": [result]}]
    return {name: value for name, value in found.items() if value}


def description(subject: CardModel, source: Path | None) -> str:
    """Return the paragraph of a model card that describes the model `subject`, exported from the folder `source`."""
    size = f" with {subject.parameters:,} parameters" if subject.parameters else ""
    sentences = [f"A `{subject.config.get('model_type')}` model{size}. {subject.purpose[0]}."]
    if "contrast" in subject.kinds and "embedding" in subject.ours:
        embedding = TextEmbedding.read(subject.ours["embedding"], str(subject.folder / CONFIG))
        unit = ", scaled to unit length" if embedding.normalized else ""
        sentences.append(f"Vectors come from {' and '.join(embedding.pooling)} pooling of its states{unit}.")
    if subject.labels:
        more = f" and {len(subject.labels) - MAX_LABELS} more" if len(subject.labels) > MAX_LABELS else ""
        sentences.append(f"Its {len(subject.labels)} labels are {', '.join(subject.labels[:MAX_LABELS])}{more}.")
    if source is not None:
        sentences.append(f"It was exported from `{source.resolve().name}` with pretune.")
    return " ".join(sentences)


def training(history: TrainingHistory) -> str:
    """Return the paragraphs of a model card on training data and procedure, given the model's training history."""
    recipe, results = history.recipe, history.results
    start = short_name(recipe.get("model") or recipe.get("teacher"))
    begun = f"Made by `pretune {history.verb}`" + (f" from `{start}`" if start else "")
    sentences = [f"{begun}{f' on {history.date}' if history.date else ''}."]
    rows: dict[str, Any] = {
        "training data": file_names(recipe.get("train")) or file_names(recipe.get("data")),
        "training examples": results.get("rows"),
        "objective": recipe.get("objective"),
        "strategy": recipe.get("strategy"),
        "epochs": recipe.get("epochs"),
        "steps": results.get("step"),
        "tokens": results.get("tokens"),
        "optimizer": section(recipe, "optimizer").get("name"),
        "learning rate": section(recipe, "optimizer").get("lr"),
        "maximum length": section(recipe, "batch").get("max_length"),
        "seed": recipe.get("seed"),
    }
    known = {name: value for name, value in rows.items() if value not in (None, "")}
    return "\n\n".join([*sentences, markdown_table(("setting", "value"), known)])


def section(recipe: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section of a recipe by name, such as `optimizer`, or an empty mapping if the recipe does not have it."""
    return validate_schema(recipe.get(name) or {}, dict[str, Any], f"{RECIPE}: {name}")


def score_table(history: TrainingHistory) -> str:
    """Return a Markdown table of the scores in a training history, with mean and standard deviation over seeds."""
    seeds = history.results.get("seeds", {})
    date = f" ({history.date})" if history.date else ""
    text = f"On {history.scored_on}{date}:"
    if isinstance(seeds, Mapping) and "count" in seeds:
        text = f"On {history.scored_on}{date}, of the best of {seeds['count']} seeds; then mean ± standard deviation:"
        spread = {name: seeds.get(f"dev/{name}", {}) for name in history.scores}
        spreads = {
            name: f"{x['mean']:.4g} ± {x['sd']:.2g}"
            for name, x in spread.items()
            if isinstance(x, Mapping) and all(isinstance(x.get(key), int | float) for key in ("mean", "sd"))
        }
        rows = {name: f"{value:.4g} | {spreads.get(name, '')}" for name, value in history.scores.items()}
        return f"{text}\n\n{markdown_table(('metric', 'kept', 'all seeds'), rows)}"
    return f"{text}\n\n{markdown_table(('metric', 'value'), history.scores)}"


def limitations(subject: CardModel, history: TrainingHistory | None) -> str:
    """Return the paragraph of a model card on the limitations of the model `subject`, given its training history."""
    sentences = []
    limit = read_optional(subject.folder / TRANSFORMER).get("max_seq_length") or subject.ours.get("max_length")
    if limit:
        sentences.append(f"Texts longer than {limit} tokens are cut.")
    if history is not None and history.scores:
        sentences.append(f"Scores hold for data like {history.scored_on}; on other data the model may be worse.")
    else:
        sentences.append("No scores are known for this model; evaluate it on your own data before you rely on it.")
    sentences.append("It reproduces what its training data contain, biases and errors included.")
    return " ".join(sentences)


def usage(subject: CardModel) -> list[str]:
    """Return the usage section of the card of the model `subject`, with code for each library that can load it."""
    parts = ["Run these in the folder that contains this one, or put the full path in place of the name."]
    snippets = {"pretune": with_pretune(subject)} if subject.library != "torch" else {"torch": snippet(TORCH, subject)}
    if subject.library == "sentence-transformers":
        snippets["sentence-transformers"] = snippet(SENTENCE_TRANSFORMERS, subject)
    elif subject.library == "onnxruntime":
        snippets["ONNX Runtime"] = snippet(ONNX_RUNTIME, subject)
    elif subject.library == "transformers":
        snippets["transformers"] = with_transformers(subject)
    for program, code in snippets.items():
        parts += [f"With {program}:", code]
    return parts


def with_pretune(subject: CardModel) -> str:
    """Return a Markdown code block for a model card that shows how to use the model `subject` with pretune."""
    kinds = set(subject.kinds)
    if kinds == {"contrast"}:
        verb = "embed"
    elif len(kinds) == 1 and kinds <= {"classify", "regress", "tag"}:
        verb = "predict"
    elif "mlm" in kinds:
        verb = "fill"
    elif kinds == {"lm"}:
        verb = "generate"
    elif kinds & set(task_names()):
        return f"```sh\npretune predict {subject.name} rows.jsonl --out answers.jsonl\n```"
    else:
        verb = "load"
    return snippet(f"import pretune\n\n{PRETUNE[verb]}", subject)


def with_transformers(subject: CardModel) -> str:
    """Return a Markdown code block for a model card that shows how to use the model `subject` with `transformers`."""
    kind, task = subject.architecture, subject.purpose[1]
    if task in PIPELINES and kind.endswith(PIPELINES[task]):
        return snippet(TRANSFORMERS.get(task, TRANSFORMERS["pipeline"]), subject, task=task)
    for ending in ("ForConditionalGeneration", "ForMultipleChoice", "DoubleHeadsModel", "ForQuestionAnswering"):
        if ending in kind:
            return snippet(TRANSFORMERS["load"] + TRANSFORMERS[ending], subject)
    if find_family(str(subject.config.get("model_type")), subject.name, kind).template.target:
        return snippet(TRANSFORMERS["load"], subject)  # how a bare encoder-decoder is called depends on its use
    return snippet(TRANSFORMERS["load"] + TRANSFORMERS["states"], subject)


def snippet(code: str, subject: CardModel, **values: str) -> str:
    """Return Python code as a Markdown block, with placeholders replaced by properties of the model `subject`."""
    files = {"graph": MOBILE_GRAPH if (subject.folder / MOBILE_GRAPH).is_file() else GRAPH, "program": PROGRAM}
    values |= {key: f"{subject.name}/{file}" for key, file in files.items()}
    values |= {"name": subject.name, "masked": f"The train was {subject.mask}."}
    values |= {"text": TEXT, "other": OTHER}
    filled = {key: json.dumps(value, ensure_ascii=False) for key, value in values.items()}
    return f"```python\n{Template(code).substitute(filled, kind=subject.architecture).strip()}\n```"


def markdown_table(head: tuple[str, ...], rows: Mapping[str, Any]) -> str:
    """Return a Markdown table with the names and values in `rows`, one row each; `head` has the column titles."""
    cells = {name: f"{value:.6g}" if isinstance(value, float) else str(value) for name, value in rows.items()}
    lines = [f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    return "\n".join([*lines, *(f"| {name} | {value} |" for name, value in cells.items())])


def front_matter(card: Path) -> dict[str, Any]:
    """Return the YAML front matter of a model card, or an empty mapping if there is no readable card."""
    text = card.read_bytes()[:LARGEST_CARD].decode("utf-8", "replace") if card.is_file() else ""
    head = text.split("\n---", 1)[0].removeprefix("---\n") if text.startswith("---\n") else ""
    try:
        content = parse_yaml(head, str(card))
    except PretuneError:
        return {}
    return content if isinstance(content, dict) else {}


def file_names(files: Any) -> str:
    """Return the names of files, without folders, as one string.

    `files` is a path, a list of paths, or a mapping from the names of tasks to paths.
    """
    if isinstance(files, Mapping):
        return ", ".join(f"{task}: {short_name(file)}" for task, file in files.items())
    listed = files if isinstance(files, list | tuple) else [files] if files else []
    return ", ".join(f"`{short_name(file)}`" for file in listed)


def short_name(reference: Any) -> str:
    """Return the last component of a path or name, or an empty string if there is none."""
    return Path(str(reference)).name if reference else ""
