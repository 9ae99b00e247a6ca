"""Write a model, with its weights and tokenizer, as one readable Python file that needs only torch and tokenizers."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from pretune import __version__
from pretune.backbones.onnx_runtime import OnnxBackbone
from pretune.models.hf_config import DEFAULT_MAX_LENGTH
from pretune.models.length_bucketing import arrange_texts, batches_by_length
from pretune.models.model import Model, Network
from pretune.models.single_file import interface
from pretune.models.single_file.layout import write_source
from pretune.models.single_file.program import ADVICE, Program
from pretune.nn.attention.patterns import Pattern, causal
from pretune.nn.sentence_embedding import TextEmbedding, TextEmbeddingHead
from pretune.objectives import Objective, Task
from pretune.objectives.tasks.classify import Classify
from pretune.objectives.tasks.contrast import Contrast, mark_prompts, prompt_tokens
from pretune.objectives.tasks.layer_features import LayerFeaturesHead
from pretune.objectives.tasks.regress import Regress
from pretune.objectives.tasks.tag import Tag
from pretune.runtime.atomic_io import write_bytes
from pretune.runtime.checksummed_safetensors import write_tensors
from pretune.runtime.errors import PretuneError
from pretune.text.tokenizers.template import Template
from pretune.text.tokenizers.tokenizer import PRIVATE, Tokenizer

SCRIPT, WEIGHTS, TOKENIZER, README = "model.py", "model.safetensors", "tokenizer.json", "README.md"
# The families that are tested to give the same outputs in a single file.
FAMILIES = (
    "albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "ernie", "gpt2", "modernbert", "mpnet",
    "openai-gpt", "roberta", "xlm-roberta", "xlnet",
)  # fmt: skip
HEADS = ("classify", "regress", "tag", "contrast", "mlm", "lm")
TOLERANCE = 1e-4  # the largest accepted difference, relative to the largest output
# The texts on which a file is compared with its model before it is written.
TEXTS = (
    "The ferry leaves at nine.",
    "Yes.",
    "",
    "Prices rose by 3.5 % in March;\tnobody — not even Zoë 😀 — had expected that.",
)


@dataclass
class Exported:
    """What an exported Python file contains besides the backbone: a head, the class that users call, and constants."""

    kind: type[interface.TextModel]
    head: str
    module: nn.Module
    example: str  # a call, for the documentation
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def method(self) -> str:
        """The name of the method that users of an exported file call, such as predict."""
        return self.example.partition("(")[0]


def export_single_file(model: Model, folder: Path, objectives: Sequence[Objective] = (), head: str | None = None, license: str | None = None) -> dict[str, Any]:  # fmt: skip
    """Write model.py, model.safetensors, tokenizer.json and README.md for a model; return what was written.

    `objectives` are those of the model's heads. `head` is the name of the head to export, or "none" for text embeddings
    only; by default, the head of the model's task is exported. `license` is that of the weights.
    """
    check_supported(model)
    exported = choose_head(model, objectives, head)
    root = Network(model.backbone, [(exported.head, exported.module)]).cpu().eval()
    tensors = {name: x.detach().clone().contiguous() for name, x in root.state_dict().items()}
    tokenizer = json.dumps(model.require_tokenizer().without_special_tokens(), ensure_ascii=False, indent=1)
    with causal_attention(root) if exported.kind is interface.Generator else nullcontext():
        source = single_file_source(model, root, exported, license)
        check_outputs(model, root, exported, source, tensors, tokenizer)
    write_tensors(folder / WEIGHTS, tensors)
    write_bytes(folder / TOKENIZER, tokenizer.encode())
    write_bytes(folder / SCRIPT, source.encode())
    write_bytes(folder / README, readme(model, exported, license).encode())
    return {
        "folder": str(folder),
        "format": "single-file",
        "head": exported.head if exported.kind is not interface.Embedder else "embeddings",
        "lines": source.count("\n"),
        "parameters": sum(x.numel() for x in tensors.values()),
        "files": sorted(file.name for file in folder.iterdir()),
    }


def check_supported(model: Model) -> None:
    """Raise an error if a model cannot be written as a single file."""
    if isinstance(model.backbone, OnnxBackbone):
        raise PretuneError(
            f"{model.backbone.path}: an ONNX graph cannot be written as a single file; export the model from which it was made"
        )
    if model.family.name not in FAMILIES:
        raise PretuneError(
            f"{model.family.name} models cannot be written as a single file, only {', '.join(FAMILIES)}; {ADVICE}"
        )
    if model.shape.linear:
        raise PretuneError("quantized models cannot be written as a single file; export the model before quantization")
    model.require_tokenizer()


@contextmanager
def causal_attention(root: Network) -> Iterator[None]:
    """Restrict all attention layers of a network to earlier tokens while the `with` block runs."""
    layers: list[Any] = [module for module in root.modules() if isinstance(getattr(module, "pattern", None), Pattern)]
    patterns = [layer.pattern for layer in layers]
    for layer in layers:
        layer.pattern = layer.pattern & causal
    try:
        yield
    finally:
        for layer, pattern in zip(layers, patterns, strict=True):
            layer.pattern = pattern


def choose_head(model: Model, objectives: Sequence[Objective], head: str | None) -> Exported:
    """Return the head to export with its interface: the head named `head`, by default that of the model's only task.

    Without a task, the default is a language-model head; without a head, or for "none", text embeddings.
    """
    heads = model.root.heads
    by_name = {part.name: part for part in objectives if part.name in heads}
    if head == "none":
        return embedder(model, None)
    if head is not None and head not in by_name:
        raise PretuneError(f"--head {head}: the model has no such head; its heads are: {', '.join(by_name) or 'none'}")
    if head is None:
        tasks = [name for name, part in by_name.items() if isinstance(part, Task)]
        if len(tasks) > 1:
            raise PretuneError(f"the model has several tasks, {', '.join(tasks)}; choose one with --head")
        head = next(iter([*tasks, *(name for name in ("mlm", "lm") if name in by_name)]), None)
        if head is None:
            return embedder(model, None)
    return exported_head(model, by_name[head])


def exported_head(model: Model, objective: Objective) -> Exported:
    """Return the head of an objective with its interface and constants for the exported file.

    Raise an error if single files do not support the head.
    """
    task: Any = objective.unwrapped if isinstance(objective, Task) else objective
    name, module = objective.name, model.root.heads[objective.name]
    model.require_trained(name, f"this {model.family.name}", "train it first")
    if model.bag_of_words is not None:
        raise PretuneError(
            f"the predictions of this model are averaged with a bag of words, which a single file cannot contain; {ADVICE}"
        )
    if isinstance(module, LayerFeaturesHead) and not any(True for _ in module.features.parameters()):
        raise PretuneError(
            f"the head {name!r} uses the outputs of selected layers, which single-file export does not support; {ADVICE}"
        )
    settings = frame_settings(model) | {"READS_ALL_LAYERS": isinstance(module, LayerFeaturesHead)}
    match task:
        case Classify():
            settings |= {"LABELS": tuple(task.labels), "MULTI_LABEL": task.multi_label, "THRESHOLD": task.threshold}
            return Exported(interface.Classifier, name, module, 'predict(["some text"])', settings)
        case Regress():
            return Exported(interface.Regressor, name, module, 'predict(["some text"])', settings)
        case Tag() if task.predicate is None:
            usual = task.default_tag or ("O" if "O" in task.labels else task.labels[0])
            settings |= {
                "LABELS": tuple(task.labels),
                "SCHEME": task.written,
                "DEFAULT_TAG": usual,
                "OVERLAP": task.overlap,
            }
            return Exported(interface.Tagger, name, module, 'predict(["some text"])', settings)
        case Contrast():
            return embedder(model, module, name, task.described, settings)
    tokenizer, template = model.require_tokenizer(), model.family.template
    special = tuple(i for i in range(tokenizer.size) if tokenizer.specials[i])
    settings |= {"VOCABULARY": tokenizer.size, "SPECIAL_IDS": special}
    if name == "mlm":
        mask = tokenizer.role("mask")
        frame = tokenizer.role("start"), tokenizer.role("separator")
        settings |= {"MASK": f"{PRIVATE}{mask}", "MASK_ID": mask, "FRAME": frame}
        return Exported(interface.MaskFiller, name, module, 'fill("some [MASK] text")', settings)
    if name == "lm":
        settings |= generation_settings(tokenizer, template)
        return Exported(interface.Generator, name, module, 'generate(["Once upon a time"])', settings)
    raise PretuneError(
        f"the head {name!r} cannot be written as a single file, only {', '.join(HEADS)}; choose one of them with --head, or write "
        "--head none to export text embeddings"
    )


def embedder(
    model: Model,
    module: nn.Module | None,
    name: str = Contrast.name,
    embedding: TextEmbedding | None = None,
    settings: dict[str, Any] | None = None,
) -> Exported:
    """Return the head for text embeddings in an exported file: `module` or, if None, a pooling of the last layer.

    `name` is the name of the head, `embedding` has its settings, and `settings` the constants of the exported file.
    """
    embedding = embedding or model.embedding or TextEmbedding()
    settings = settings or frame_settings(model)
    tokens = prompt_tokens(
        embedding.prompt, model.require_tokenizer(), model.family.template, model.longest or DEFAULT_MAX_LENGTH
    )
    settings |= {"PROMPT": embedding.prompt, "PROMPT_TOKENS": 0 if embedding.include_prompt else tokens}
    module = module or TextEmbeddingHead(embedding, model.backbone.width)
    return Exported(interface.Embedder, name, module, 'embed(["some text"])', settings)


def frame_settings(model: Model) -> dict[str, Any]:
    """Return the constants of an exported file for the maximum length and for the special tokens around texts."""
    tokenizer, template = model.require_tokenizer(), model.family.template

    def frame(texts: int) -> tuple[tuple[int | str, int], ...]:
        items = template.items(texts)
        if texts > 1 and not all(item in "AB" or tokenizer.has_role(item) for item, _, _ in items):
            return ()
        return tuple((item if item in "AB" else tokenizer.role(item), segment) for item, _, segment in items)

    longest = model.longest or DEFAULT_MAX_LENGTH
    return {"MAX_LENGTH": longest, "SINGLE": frame(1), "PAIR": frame(2), "READS_ALL_LAYERS": False, "PROMPT_TOKENS": 0}


def generation_settings(tokenizer: Tokenizer, template: Template) -> dict[str, Any]:
    """Return the constants of an exported file for the tokens before prompts and at the end of generated texts."""
    before = tuple(tokenizer.role(role) for role in template.single[: template.single.index("A")])
    between = [role for role in template.document_template.single if role != "A"]
    empty = (tokenizer.role(between[-1]),) if between and tokenizer.has_role(between[-1]) else ()
    end = (tokenizer.role("end"),) if tokenizer.has_role("end") else ()
    return {"START_IDS": before, "EMPTY_PROMPT_IDS": empty, "END_IDS": end}


def single_file_source(model: Model, root: Network, exported: Exported, license: str | None) -> str:
    """Return the Python source of a single file with the network `root`, its head, and its interface."""
    settings = exported.settings | {"HEAD": exported.head, "TOKENS_PER_BATCH": interface.TOKENS_PER_BATCH}
    columns = {"position", "segment"} | ({"prompt"} if settings["PROMPT_TOKENS"] else set())
    program = Program(root, columns, settings)
    program.add_network(exported.kind)
    program.imports |= {"Path": "from pathlib import Path", "json": "import json", "sys": "import sys"}
    public = {"states", "tokenize", exported.method}
    return write_source(
        header(model, exported, license), program.imports, program.definitions, ending(exported), public
    )


def header(model: Model, exported: Exported, license: str | None) -> str:
    """Return the docstring of an exported Python file: what model it is, how it is used, and where it comes from."""
    return f'''"""{title(model, exported)}

Needs torch and tokenizers, and the files {WEIGHTS} and {TOKENIZER} beside this one:

    from {Path(SCRIPT).stem} import load

    model = load()
    model.{exported.example}

or, on the command line: python {SCRIPT} {command_argument(exported)}

Written by pretune {__version__} from its own modules, reduced to what this model uses. The code is licensed under
Apache-2.0; {license_of_weights(license)}
"""'''


def title(model: Model, exported: Exported) -> str:
    """Return a sentence that describes an exported model: what it does, its family, and its size."""
    first = (exported.kind.__doc__ or "").strip().rstrip(".")
    return f"{first}: {model.family.name} with {model.backbone.depth} layers of width {model.backbone.width}."


def command_argument(exported: Exported) -> str:
    """Return an example of a command-line argument for the exported file, such as "some text"."""
    return exported.example.partition("(")[2].strip("[]()")


def license_of_weights(license: str | None) -> str:
    """Return a clause that names the license of a model's weights, for the docstring of the exported file."""
    return f"the weights are licensed under {license}." if license else "the weights have the license of their model."


def ending(exported: Exported) -> str:
    """Return the last lines of an exported Python file: a function that loads the model, and a command line."""
    kind, method = exported.kind.__name__, exported.method
    vectors = ".tolist()" if exported.kind is interface.Embedder else ""
    if exported.kind is interface.MaskFiller:
        loop = "    for text in sys.argv[1:]:\n        print(json.dumps(model.fill(text), ensure_ascii=False))"
    else:
        loop = f"    for answer in model.{method}(sys.argv[1:]){vectors}:\n        print(json.dumps(answer, ensure_ascii=False))"
    return f'''def load(folder: str | Path = Path(__file__).parent, device: str = "cpu") -> {kind}:
    """Load the model from the folder with its weights and its tokenizer, by default that of this file."""
    return {kind}(Path(folder), device)


if __name__ == "__main__":
    model = load()
{loop}
'''


def readme(model: Model, exported: Exported, license: str | None) -> str:
    """Return a short README in Markdown for the folder of an exported model."""
    return f"""# {title(model, exported)}

`pip install torch tokenizers`, then in this folder:

```python
from {Path(SCRIPT).stem} import load

model = load()
model.{exported.example}
```

or `python {SCRIPT} {command_argument(exported)}`. {SCRIPT} contains the whole model as readable code; {WEIGHTS} has the weights, and
{TOKENIZER} the tokenizer, in which special tokens have names that no text contains. Written by pretune {__version__}. The code
is licensed under Apache-2.0; {license_of_weights(license)}
"""


@torch.no_grad()
def check_outputs(
    model: Model, root: Network, exported: Exported, source: str, tensors: dict[str, Tensor], tokenizer: str
) -> None:
    """Raise an error if the Python code `source` computes hidden states or outputs other than the model's."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_file(tensors, folder / WEIGHTS)
        (folder / TOKENIZER).write_text(tokenizer, encoding="utf-8")
        module = ModuleType(f"pretune_single_file_{id(source)}")
        module.__file__ = str(folder / SCRIPT)
        sys.modules[module.__name__] = module  # dataclasses look it up
        try:
            exec(compile(source, SCRIPT, "exec"), vars(module))
            loaded = module.load()
        finally:
            del sys.modules[module.__name__]
    before = exported.settings["PROMPT_TOKENS"]
    for text in TEXTS:
        arrangement = arrange_texts(model, [text], None, exported.settings["MAX_LENGTH"])
        (batch,) = batches_by_length(arrangement, lambda x: mark_prompts(x, np.full(len(x.lengths), before)))
        if not len(batch.packed[0]):
            continue  # a model without special tokens has no output for an empty text
        ours = network_outputs(root, batch.packed[0], exported)
        theirs = network_outputs(loaded.network, loaded.pack([loaded.frame(loaded.tokenize(text))]), exported)
        for expected, found in zip(ours, theirs, strict=True):
            difference = float((expected - found).abs().max()) / max(1.0, float(expected.abs().max()))
            if not difference < TOLERANCE:  # also true for NaN
                raise PretuneError(
                    f"{model.family.name}: the outputs of the single file differ from the model's by {difference:.2g} of the largest value, so "
                    "it is not usable; please report this as a bug"
                )


def network_outputs(network: Any, packed: Any, exported: Exported) -> tuple[Tensor, Tensor]:
    """Return the hidden states and head outputs of a network, the original or that of the exported file."""
    head, last = network.heads[exported.head], network.backbone(packed).last
    states = last
    if exported.settings["READS_ALL_LAYERS"]:
        states = head.features(network.backbone(packed, keep=head.features.keep).layers, packed)
        head = head.head
    if exported.kind is interface.Tagger:
        return last, head(states)
    if exported.kind in (interface.MaskFiller, interface.Generator):
        return last, head(states, network.backbone.embed.tokens)
    return last, head(states, packed)
