"""A model: a backbone with heads, its tokenizer, and the folder it lives in (the Hugging Face layout where there is one)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from pretune.atomic import write_bytes, write_json
from pretune.backbones.states import Backbone
from pretune.boxed import boxed_folder, boxed_names
from pretune.errors import PretuneError, nearest
from pretune.families import find_family
from pretune.families.family import Family
from pretune.nn.adaptive import AdaptiveEmbeddings
from pretune.nn.embeddings import Embeddings
from pretune.objectives import Joint, Loss, Mixture, Objective
from pretune.packed import Batch
from pretune.presets import find_preset, preset_names
from pretune.progress import say
from pretune.text.tokenizer import Tokenizer

CONFIG, WEIGHTS, HEAD = "config.json", "model.safetensors", "head.safetensors"
# Keys of config.json that families leave open → the roles of a tokenizer that fill them.
ROLE_KEYS = {"bos_token_id": "start", "eos_token_id": "end", "cls_token_id": "start", "sep_token_id": "separator"}


class Root(nn.Module):
    """Backbone and heads together. Its forward is the only thing that is compiled, replicated or sharded."""

    def __init__(self, backbone: Backbone, heads: Iterable[tuple[str, nn.Module]] = ()) -> None:
        super().__init__()
        self.backbone: Any = backbone
        self.heads = nn.ModuleDict(dict(heads))
        self.touch_all = False

    def forward(self, joint: Joint, batch: Batch) -> Loss:
        """The losses of a joint objective on a batch."""
        loss = joint.loss(self.heads, self.backbone, batch)
        if self.touch_all:
            # Processes that exchange gradients must all have the same ones, whichever objective has its turn.
            used = {part.name for part in joint.objectives}
            idle = [p for name, head in self.heads.items() if name not in used for p in head.parameters()]
            first = next(iter(loss.sums))
            loss.sums[first] = loss.sums[first] + 0.0 * sum(p.sum() for p in idle)
        return loss

    def tensors(self) -> dict[str, Tensor]:
        """Parameters and buffers by name, shared ones once."""
        return {**dict(self.named_parameters()), **dict(self.named_buffers())}

    def compute_in(self, kind: torch.dtype) -> None:
        """Activations are of this type from the embeddings on; parameters stay as they are."""
        for module in self.modules():
            if isinstance(module, Embeddings | AdaptiveEmbeddings):
                module.compute = kind


@dataclass
class Model:
    """Everything needed to use a network: family, configuration, parameters, tokenizer, and what it was trained for."""

    family: Family
    config: Any
    root: Root
    tokenizer: Tokenizer | None = None
    objective: str = ""  # what its heads are for, e.g. "mlm+nsp"
    labels: list[str] = field(default_factory=list)  # classes in order, for classifiers

    @property
    def backbone(self) -> Any:
        """The network without its heads."""
        return self.root.backbone

    def need_tokenizer(self) -> Tokenizer:
        """The tokenizer, which a preset does not have yet."""
        if self.tokenizer is None:
            raise PretuneError(f"this {self.family.name} has no tokenizer yet; pretrain it, or give it one")
        return self.tokenizer

    def add_heads(self, objectives: Iterable[Objective], seed: int = 0) -> None:
        """Give it the heads of some objectives, those it has kept, in a reproducible start.

        An objective may use the head of another (tlm that of mlm); the other's own comes first.
        """
        heads = self.root.heads
        for objective in sorted(objectives, key=lambda objective: hasattr(objective, "head_of")):
            owner = getattr(objective, "head_of", objective.name)
            if owner not in heads:
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(seed)
                    heads[owner] = objective.head(self.backbone)
            heads[objective.name] = heads[owner]

    def save(self, folder: str | Path, kind: torch.dtype = torch.float32) -> None:
        """Write config.json, model.safetensors, the tokenizer's files and, where needed, head.safetensors.

        Weights are written as `kind`; whoever reads them computes in fp32 all the same. What else a head exports (rtd its
        generator) goes to folders inside, as models of their own, where that is a layout of the family.
        """
        folder = Path(folder)
        state = {name: tensor.detach().cpu().to(kind).contiguous() for name, tensor in self.root.tensors().items()}
        published, rest = self.family.table.write(state)
        if rest:
            write_bytes(folder / HEAD, save(rest))
        else:
            (folder / HEAD).unlink(missing_ok=True)
        # A head that two share is the first's.
        owners = {head: name for name, head in reversed([*self.root.heads.items()])}
        self._write(folder, published, self._config(self.config, frozenset(owners.values())))
        for head in self.root.heads.values():
            for name, export in getattr(head, "exports", dict)().items():
                if name in self.family.companions:
                    published, _ = self.family.table.write(export.tensors(state))
                    config = self._config(replace(self.config, **export.sizes), export.heads)
                    self._write(folder / name, published, config)

    def _write(self, folder: Path, published: dict[str, Tensor], config: dict[str, Any]) -> None:
        write_bytes(folder / WEIGHTS, save(published, metadata={"format": "pt"}))
        write_json(folder / CONFIG, config)
        if self.tokenizer is not None:
            self.tokenizer.save(folder, self.family.template)

    def _config(self, shape: Any, heads: frozenset[str]) -> dict[str, Any]:
        poolings = {ours: theirs for theirs, ours in self.family.poolings.items()} or {"start": ""}
        pooling = self.root.heads["classify"].pooling if "classify" in heads else "start"
        if pooling not in poolings:  # `transformers` would pool otherwise, and give other answers
            heads -= {"classify"}
        classes = self.family.classes
        config: dict[str, Any] = {
            "architectures": [classes.get(heads, classes[frozenset()])],
            "model_type": self.family.name,
            "dtype": "float32",
            **asdict(shape),
        }
        if "classify" in heads and poolings[str(pooling)]:
            config["classifier_pooling"] = poolings[str(pooling)]
        if self.tokenizer is not None:
            config |= self._special_ids(self.tokenizer, config)
        if self.labels:
            config["id2label"] = {str(i): label for i, label in enumerate(self.labels)}
            config["label2id"] = {label: i for i, label in enumerate(self.labels)}
        config["pretune"] = {"objective": self.objective}
        return config

    def _special_ids(self, tokenizer: Tokenizer, config: dict[str, Any]) -> dict[str, int]:
        """Ids that `transformers` looks up in config.json: of an encoder-decoder, those that it generates with too."""
        roles = {key: role for key, role in ROLE_KEYS.items() if config.get(key, 0) is None}
        roles |= {"pad_token_id": "padding"} if config.get("pad_token_id") is None else {}
        if target := self.family.template.target:
            roles |= {"pad_token_id": "padding", "eos_token_id": "end", "decoder_start_token_id": target[0]}
            roles |= {"bos_token_id": "start"} if "start" in target else {}
        return {key: tokenizer.role(role) for key, role in roles.items() if tokenizer.has(role)}


def make_model(
    name: str,
    vocabulary: int | None = None,
    seed: int = 0,
    padding: int | None = None,
    languages: Sequence[str] = (),
) -> Model:
    """A model of a preset's shape with random parameters; `vocabulary` and `padding` are its tokenizer's.

    Of several `languages` each gets a vector, where the family has them.

    >>> make_model("bert-tiny").backbone.width
    128
    """
    preset = find_preset(name)
    family = find_family(preset["family"], name)
    config = family.read_config(preset["config"])
    if vocabulary is not None:
        config = replace(config, vocab_size=vocabulary)
    if padding is not None and hasattr(config, "pad_token_id"):  # where RoBERTa's positions start depends on it
        config = replace(config, pad_token_id=padding)
    if len(languages) > 1 and hasattr(config, "lang2id"):
        numbers = {language: number for number, language in enumerate(languages)}
        names = {str(number): language for language, number in numbers.items()}
        config = replace(config, n_langs=len(languages), lang2id=numbers, id2lang=names)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Model(family, config, Root(family.build(config)))


def random_twin(model: Model, seed: int = 0) -> Model:
    """The same network, without heads, and the same tokenizer, with random parameters.

    >>> random_twin(make_model("bert-tiny"), seed=1).config == make_model("bert-tiny").config
    True
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Model(model.family, model.config, Root(model.family.build(model.config)), model.tokenizer)


def family_of(reference: str | Path) -> Family:
    """The family of a model reference or a preset, without reading any weights.

    >>> family_of("bert-tiny").name
    'bert'
    """
    if str(reference) in preset_names():
        return find_family(find_preset(str(reference))["family"], str(reference))
    return read_config(find_folder(reference))[0]


def read_config(folder: Path) -> tuple[Family, dict[str, Any]]:
    """The family of the model in a folder, and its config.json."""
    content = _read_json(folder / CONFIG)
    return find_family(str(content.get("model_type")), str(folder / CONFIG)), content


def labels_in(content: Mapping[str, Any]) -> list[str]:
    """The classes that a config.json names, in order."""
    return [label for _, label in sorted(content.get("id2label", {}).items(), key=lambda item: int(item[0]))]


def load_model(reference: str | Path, objectives: Mixture | None = None, seed: int = 0, partial: bool = False) -> Model:
    """A model from a run folder or a folder in the Hugging Face layout.

    With `objectives`, it gets their heads: from the checkpoint where it has them, else new ones. A checkpoint that lacks
    parts of the backbone, or has tensors nobody knows, is refused with a list, unless `partial`.

    >>> model = load_model("runs/mine")  # doctest: +SKIP
    """
    folder = find_folder(reference)
    family, content = read_config(folder)
    config = family.read_config(content)
    tensors = read_tensors(folder / WEIGHTS)
    if (folder / HEAD).is_file():
        head_tensors = read_tensors(folder / HEAD)
    else:
        head_tensors = {}
    model = Model(family, config, Root(family.build(config)), _tokenizer(folder))
    model.objective = content.get("pretune", {}).get("objective", "")
    model.labels = labels_in(content)
    if objectives is not None:
        model.add_heads(objectives.objectives, seed)
    wanted = model.root.tensors()
    found, missing, extra = family.table.read(tensors, wanted)
    found |= {name: tensor for name, tensor in head_tensors.items() if name in wanted}
    missing = [name for name in missing if name not in found]
    _check(folder, found, wanted, missing, extra, family, partial)
    learned = dict(model.root.named_parameters())
    new_heads = sorted({name.split(".")[1] for name in missing if name.startswith("heads.") and name in learned})
    if new_heads:
        say(f"{folder}: new, untrained parameters for {', '.join(new_heads)}")
    model.root.load_state_dict(found, strict=False)
    if model.tokenizer is not None and model.tokenizer.size > config.vocab_size:
        raise PretuneError(
            f"{folder}: the tokenizer has {model.tokenizer.size} tokens but the model only {config.vocab_size}; "
            "they do not belong together"
        )
    return model


def _check(
    folder: Path,
    found: dict[str, Tensor],
    wanted: dict[str, Tensor],
    missing: list[str],
    extra: list[str],
    family: Family,
    partial: bool,
) -> None:
    """Refuse what does not fit. A head of another shape (another number of classes) counts as missing."""
    wrong = [name for name, tensor in found.items() if tensor.shape != wanted[name].shape]
    for name in wrong:
        if name.startswith("heads."):
            del found[name]
            missing.append(name)
    shapes = [
        f"{name} is {tuple(found[name].shape)}, not {tuple(wanted[name].shape)}" for name in wrong if name in found
    ]
    lacking = [name for name in missing if name.startswith("backbone.")]
    strange = [name for name in extra if not family.table.knows(name)]
    if shapes:
        raise PretuneError(f"{folder}: tensors of the wrong shape: {'; '.join(shapes)}")
    if lacking and not partial:
        listed = ", ".join(lacking)
        raise PretuneError(f"{folder}: the checkpoint lacks {len(lacking)} tensors: {listed}; go on with --partial")
    if strange and not partial:
        raise PretuneError(f"{folder}: tensors that no {family.name} has: {', '.join(strange)}; go on with --partial")


def find_folder(reference: str | Path) -> Path:
    """The folder behind a model reference."""
    folder = Path(reference)
    if (folder / CONFIG).is_file():
        return folder
    if folder.is_dir():
        raise PretuneError(f"{folder}: no model here (no {CONFIG})")
    name = str(reference)
    if name in boxed_names():
        return boxed_folder(name)
    if name in preset_names():
        raise PretuneError(f"{name} is a preset without weights; pretrain it first, or name a folder")
    known = [*boxed_names(), *preset_names()]
    raise PretuneError(f"{name}: neither a model folder nor a name that is known; {nearest(name, known)}")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    try:
        return load_file(path)
    except FileNotFoundError as error:
        raise PretuneError(f"{path}: missing") from error
    except SafetensorError as error:
        raise PretuneError(f"{path}: damaged or cut off ({error})") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise PretuneError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(content, dict):
        raise PretuneError(f"{path}: not a model's configuration")
    return content


def _tokenizer(folder: Path) -> Tokenizer | None:
    try:
        return Tokenizer.load(folder)
    except PretuneError as error:
        if "no tokenizer here" in str(error):
            return None
        raise
