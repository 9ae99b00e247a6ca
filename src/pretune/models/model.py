"""A model: a backbone with heads, its tokenizer, and the folder it lives in (the Hugging Face layout where there is one)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from pretune.backbones.backbone import Backbone
from pretune.backbones.encoder_decoder import EncoderDecoder
from pretune.backbones.onnx_runtime import GRAPH, OnnxBackbone
from pretune.backbones.pruned_shape import Shape
from pretune.families import find_family
from pretune.families.config_bounds import count_layers
from pretune.families.detection import recognize_family
from pretune.families.family import Family
from pretune.families.weight_shapes import find_misfits, heads_left_out
from pretune.models.bundled import boxed_folder, boxed_names
from pretune.models.hf_config import check_section, class_in, labels_of, problem_in
from pretune.models.presets import find_preset, is_preset, preset_names
from pretune.models.sentence_transformers import read_layout, transformer_folder, write_layout
from pretune.models.weights import read_shapes, read_weights, write_weights
from pretune.nn.adaptive_softmax import AdaptiveEmbeddings
from pretune.nn.character_cnn import SpelledEmbeddings
from pretune.nn.dropout import stop_attention_dropout
from pretune.nn.embeddings import Embeddings
from pretune.nn.initialization import Undrawn
from pretune.nn.text_embedding import TextEmbedding, TextEmbeddingHead
from pretune.objectives import Joint, Loss, Mixture, Named, Objective, parse_objective, task_names
from pretune.objectives.tasks.contrast import Contrast
from pretune.objectives.tasks.layer_features import OnHead
from pretune.packed import Batch
from pretune.runtime.atomic_io import write_json
from pretune.runtime.errors import PretuneError, if_option, nearest
from pretune.runtime.parsing import read_mapping
from pretune.runtime.progress import say
from pretune.runtime.tensor_encoding import as_int8, is_sparse, restored, without_zeros
from pretune.runtime.tensor_files import check_finite, file_digest, read_tensors, write_tensors
from pretune.text.tokenizers.tokenizer import Tokenizer

Result = TypeVar("Result")

CONFIG, HEAD = "config.json", "head.safetensors"
FEW_LAYERS = 64  # which may share their weights
SPARE_NUMBERS = 1 << 24  # that a network may have beyond its weights: tables that follow from its configuration
LENGTH = 512  # tokens of sequences, where a model takes any number
POOLED = ("classify", "choose")  # heads on one vector a sequence that layouts have a place for
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
        """Return the parameters and buffers of a checkpoint by name, shared ones once."""
        # Buffers that follow from the configuration are not saved. `state_dict` would tell, but cuts a model into shards again.
        derived = {
            f"{path}.{name}" for path, module in self.named_modules() for name in module._non_persistent_buffers_set
        }
        buffers = {name: buffer for name, buffer in self.named_buffers() if name not in derived}
        return {**dict(self.named_parameters()), **buffers}

    def compute_in(self, kind: torch.dtype) -> None:
        """Activations are of this type from the embeddings on; parameters stay as they are."""
        for module in self.modules():
            if isinstance(module, Embeddings | AdaptiveEmbeddings | SpelledEmbeddings):
                module.compute = kind


@dataclass
class Model:
    """Everything needed to use a network: family, configuration, parameters, tokenizer, and what it was trained for.

    `pretune.load` reads one from a folder; `save` and `export` write it. `backbone` is the network without heads, and
    `root.heads` are these, by the names of their objectives.

    >>> model = pretune.load("runs/mine")  # doctest: +SKIP
    >>> model.export("for-others/")  # doctest: +SKIP
    """

    family: Family
    config: Any
    root: Root
    tokenizer: Tokenizer | None = None
    objective: str = ""  # what its heads are for, e.g. "mlm+nsp"
    labels: list[str] = field(default_factory=list)  # classes in order, for classifiers
    untrained: list[str] = field(default_factory=list)  # parameters that its checkpoint did not have: these are random
    left_out: list[str] = field(default_factory=list)  # tensors of heads that its checkpoint has, and it has not
    options: dict[str, Any] = field(default_factory=dict)  # what else a task found in its examples: a threshold …
    tasks: dict[str, dict[str, Any]] = field(
        default_factory=dict
    )  # labels and options of each, where there are several
    shape: Shape = field(default_factory=Shape)  # what is left of what the configuration describes
    sparse: bool = False  # matrices with many zeros are saved without them
    embedding: TextEmbedding | None = None  # how vectors of texts are computed, where the model says so
    max_length: int | None = None  # of sequences, where that is less than the model has positions

    @property
    def backbone(self) -> Any:
        """The network without its heads."""
        return self.root.backbone

    @property
    def longest(self) -> int | None:
        """The most tokens of a sequence: the model's positions, or the limit that its folder sets; None: any number."""
        return min((limit for limit in (self.max_length, self.backbone.longest) if limit is not None), default=None)

    @property
    def embedding_head(self) -> tuple[str, TextEmbeddingHead] | None:
        """The head that gives vectors of texts, and its name."""
        heads = self.root.heads.items()
        return next(((name, head) for name, head in heads if isinstance(head, TextEmbeddingHead)), None)

    def fresh(self, seed: int) -> Any:
        """A backbone of the same shape with random parameters."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.shape.apply(self.family.build(self.config))

    def need_tokenizer(self) -> Tokenizer:
        """The tokenizer, which a preset does not have yet."""
        if self.tokenizer is None:
            raise PretuneError(f"this {self.family.name} has no tokenizer yet; pretrain it, or give it one")
        return self.tokenizer

    def need_trained(self, head: str, where: str | Path, advice: str) -> None:
        """Refuse to answer by a head with random parameters; `advice` says what to do instead."""
        own = {id(parameter) for parameter in self.root.heads[head].parameters()}
        random = [name for name in self.untrained if id(self.root.get_parameter(name)) in own]
        if random:
            (first, *_) = self.family.table.theirs(random[0]) or (random[0],)
            raise PretuneError(
                f"{where}: its head for {head} is untrained ({first} is not in the checkpoint, or of another shape), so its "
                f"answers would be random; {advice}"
            )

    def say_left_out(self, where: str | Path) -> None:
        """Say which heads of its checkpoint it was loaded without."""
        if self.left_out:
            heads = dict.fromkeys(name.removesuffix(".weight").removesuffix(".bias") for name in self.left_out)
            say(f"{where}: heads that the checkpoint has and that were not loaded: {', '.join(heads)}")

    def add_heads(self, objectives: Iterable[Objective], seed: int = 0) -> None:
        """Give it the heads of some objectives, those it has kept, in a reproducible start.

        An objective may use the head of another (tlm that of mlm, trtd that of rtd); the other's own comes first.
        """
        heads = self.root.heads
        for objective in sorted(objectives, key=_borrows_head):
            owner = objective.head_of
            if owner not in heads:
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(seed)
                    heads[owner] = objective.head(self.backbone)
            heads[objective.name] = heads[owner]

    def save(self, folder: str | Path, kind: torch.dtype = torch.float32) -> None:
        """Write config.json, model.safetensors, the tokenizer's files and, where needed, head.safetensors.

        Weights are written as `kind`; whoever reads them computes in fp32 all the same.
        """
        folder = Path(folder)
        _, rest = self._published(self.state(kind))
        if rest:
            write_tensors(folder / HEAD, rest)
        else:
            (folder / HEAD).unlink(missing_ok=True)
        self._export(folder, kind, sparse=self.sparse)

    def export(
        self,
        folder: str | Path,
        kind: torch.dtype = torch.float32,
        *,
        compute: torch.dtype = torch.float32,
        shard: int | None = None,
        companions: bool = True,
    ) -> str:
        """Write what others read: config.json, weights of type `kind`, the tokenizer's files. The class they load it with.

        `compute` is the type that config.json tells them to compute in; `shard` the most bytes of a file of weights.
        `companions`, what else a head exports (rtd its generator), go to folders inside, as models of their own, where that
        is a layout of the family. A model whose only head gives vectors of texts becomes a sentence-transformers folder.
        """
        if self.shape:
            raise PretuneError(
                f"the config.json of {self.family.name} cannot say {self.shape.told()}; "
                f"use the model with pretune{if_option('to', ', or export it --to onnx')}"
            )
        vectors = self.embedding_head if len(self.root.heads) == 1 else None
        if vectors is None:
            return self._export(Path(folder), kind, compute, shard, companions)
        self._check_encoder(folder)
        words = self.need_tokenizer()
        if not words.has("padding"):  # which sentence-transformers does without being asked
            roles = {**words.role_tokens, "padding": words.vocabulary[words.role("end")]}
            words = Tokenizer(words.backend, roles, words.characters)
        name = replace(self, tokenizer=words)._export(Path(folder), kind, compute, shard, companions)
        head, module = vectors
        length = self.longest or LENGTH
        write_layout(Path(folder), module.embedding, self.backbone.width, length, head, self.state(kind))
        return name

    def _check_encoder(self, folder: str | Path) -> None:
        """Refuse models of which sentence-transformers would read a part alone."""
        if isinstance(self.backbone, EncoderDecoder):
            raise PretuneError(
                f"{folder}: sentence-transformers computes vectors with the encoder of {self.family.name} alone, and pretune "
                "with its decoder, too; use an encoder"
            )

    def _export(
        self,
        folder: Path,
        kind: torch.dtype,
        compute: torch.dtype = torch.float32,
        shard: int | None = None,
        companions: bool = True,
        sparse: bool = False,
    ) -> str:
        if isinstance(self.backbone, OnnxBackbone):
            raise PretuneError(
                f"{self.backbone.path}: a graph is not changed or saved anew; use the model it was made of"
            )
        state = self.state(kind)
        published, _ = self._published(state)
        config = self.described(compute)
        if self.shape.linear:  # what is looked up, not multiplied, is whole numbers in the file alone
            published = as_int8(published, self.family.table.theirs("backbone.embed.tokens") or ())
        self._write(folder, without_zeros(published) if sparse else published, config, shard)
        for head in self.root.heads.values():
            for name, export in getattr(head, "exports", dict)().items():
                if companions and name in self.family.companions:
                    published, _ = self.family.table.write(export.tensors(state))
                    shape = replace(self.config, **export.sizes, tie_word_embeddings=True)
                    inside = self._config(shape, export.heads, compute)
                    self._write(folder / name, published, inside, shard)
        return str(config["architectures"][0])

    def _published(self, state: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return its parameters in the family's layout, and those that have no place there."""
        return self.family.table.write(state, self._class(self._heads()), self.family.is_tied(self.config))

    def _heads(self) -> frozenset[str]:
        """The names of its heads; one that two share is the first's."""
        return frozenset({head: name for name, head in reversed([*self.root.heads.items()])}.values())

    def _class(self, heads: frozenset[str]) -> frozenset[str]:
        """The heads of the class that has most of these; of several, of one that is for a task."""
        fits = {name for name in heads if name not in self.root.heads or self._fits(name)}
        known = [names for names in self.family.classes if names <= fits]
        return max(known, key=lambda names: (len(names), any(name in task_names() for name in names)))

    def _fits(self, name: str) -> bool:
        """Whether `transformers` gives the same answers: on other layers, or pooled otherwise, it would not."""
        head = self.root.heads[name]
        return not isinstance(head, OnHead) and (name not in POOLED or head.pooling in self._poolings())

    def _poolings(self) -> dict[str, str]:
        return {ours: theirs for theirs, ours in self.family.poolings.items()} or {"start": ""}

    def state(self, kind: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """Its parameters and buffers as they are saved: numbers with a point as `kind`."""
        state = {name: tensor.detach().cpu() for name, tensor in self.root.tensors().items()}
        # Those of 16 bits already are factors of integers.
        wide = {name for name, x in state.items() if x.is_floating_point() and x.dtype != torch.bfloat16}
        return {name: (x.to(kind) if name in wide else x).contiguous() for name, x in state.items()}

    def described(self, compute: torch.dtype = torch.float32) -> dict[str, Any]:
        """Its config.json."""
        return self._config(self.config, self._heads(), compute)

    def _write(self, folder: Path, published: dict[str, Tensor], config: dict[str, Any], shard: int | None) -> None:
        write_weights(folder, published, shard)
        write_json(folder / CONFIG, config)
        if self.tokenizer is not None:
            self.tokenizer.save(folder, self.family.template, self.backbone.longest)

    def _config(self, shape: Any, heads: frozenset[str], compute: torch.dtype) -> dict[str, Any]:
        best = self._class(heads)
        config: dict[str, Any] = {
            "architectures": [self.family.classes[best]],
            "model_type": self.family.name,
            "dtype": str(compute).removeprefix("torch."),
            **asdict(shape),
        }
        pooled = next((name for name in POOLED if name in best), "")
        if pooled and (pooling := self._poolings()[str(self.root.heads[pooled].pooling)]):
            config["classifier_pooling"] = pooling
        if "classify" in best and (problem := self.root.heads["classify"].problem):
            config["problem_type"] = problem
        if self.tokenizer is not None:
            config |= self._special_ids(self.tokenizer, config)
        # A number has no label, but its place a name all the same.
        labels = self.labels or (["LABEL_0"] if "classify" in best else [])
        if labels:
            config["id2label"] = {str(i): label for i, label in enumerate(labels)}
            config["label2id"] = {label: i for i, label in enumerate(labels)}
        found: dict[str, Any] = {"options": self.options, "tasks": self.tasks}
        if shape == self.config:
            head, embedding = self.embedding_head, self.embedding
            if head is not None:
                embedding = head[1].embedding
            elif embedding is not None and embedding.learned:  # nothing without its parameters
                embedding = None
            found |= {"embedding": embedding and embedding.write(), "max_length": self.max_length}
        config["pretune"] = {"objective": self.objective} | {name: value for name, value in found.items() if value}
        if shape == self.config and self.shape:
            config["pretune"]["shape"] = self.shape.write()
        return config

    def _special_ids(self, tokenizer: Tokenizer, config: dict[str, Any]) -> dict[str, int]:
        """Ids that `transformers` looks up in config.json: of an encoder-decoder, those that it generates with too."""
        roles = {key: role for key, role in ROLE_KEYS.items() if config.get(key, 0) is None}
        roles |= {"pad_token_id": "padding"} if config.get("pad_token_id") is None else {}
        if target := self.family.template.target:
            roles |= {"pad_token_id": "padding", "eos_token_id": "end"}
            if target[0] != "language":  # which is that of each text
                roles["decoder_start_token_id"] = target[0]
            roles |= {"bos_token_id": "start"} if "start" in target else {}
        found = {key: tokenizer.role(role) for key, role in roles.items() if tokenizer.has(role)}
        opening = tokenizer.special_names(self.family.template).get("bos_token")
        if "bos_token_id" in found and opening is not None:  # the same as in tokenizer_config.json
            found["bos_token_id"] = tokenizer.vocabulary.index(opening)
        return found


def make_model(
    name: str,
    vocabulary: int | None = None,
    seed: int = 0,
    padding: int | None = None,
    languages: Sequence[str] = (),
    target: int | None = None,
) -> Model:
    """A model of a preset's shape with random parameters; `vocabulary` and `padding` are its tokenizer's.

    `target` is the size of a vocabulary of translations, where that is another one. Of several `languages` each gets a vector, where the family has them.

    >>> make_model("bert-tiny").backbone.width
    128
    """
    preset = find_preset(name)
    family = find_family(preset["family"], name)
    config = family.read_config(preset["config"])
    known = [field.name for field in fields(config)]
    for key in preset["config"]:
        if key not in known:
            raise PretuneError(f"{name}: unknown key {key!r} of config; {nearest(key, known)}")
    if vocabulary is not None:
        config = replace(config, vocab_size=vocabulary)
    if hasattr(config, "target_vocab_size") and (vocabulary is not None or target is not None):
        config = replace(config, target_vocab_size=target)
    elif target is not None:
        raise PretuneError(f"{name} has one vocabulary for both sides; leave out tokenizer.target")
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
    root, limit = Root(model.fresh(seed)), model.max_length
    return Model(model.family, model.config, root, model.tokenizer, shape=model.shape, max_length=limit)


def family_of(reference: str | Path) -> Family:
    """The family of a model reference or a preset, without reading any weights.

    >>> family_of("bert-tiny").name
    'bert'
    """
    if is_preset(str(reference)):
        return find_family(find_preset(str(reference))["family"], str(reference))
    return read_config(find_folder(reference))[0]


def read_config(folder: Path) -> tuple[Family, dict[str, Any]]:
    """Return the family of the model in a folder, and its config.json."""
    path = folder / CONFIG
    content = read_mapping(path, "a model's configuration")
    check_section(content, path)
    if content.get("model_type"):
        return find_family(str(content["model_type"]), str(path), class_in(content)), content
    family, told = recognize_family(content, class_in(content), lambda: read_shapes(folder), str(path))
    _say_once(f"{path}: no model_type; read as {family.name}, by {told}")
    return family, content


@cache
def _say_once(line: str) -> None:
    """Say what several reads of one folder would repeat."""
    say(line)


def trained_for(reference: str | Path) -> Mixture | None:
    """Return the objectives whose heads a model has: those it was trained for, or those of the class it was published as."""
    folder = find_folder(reference)
    family, content = read_config(folder)
    if (layout := read_layout(folder)) is not None:
        return parse_objective(Contrast.name, embedding=layout.embedding)
    path = folder / CONFIG
    ours, labels = content.get("pretune", {}), labels_of(folder, family, content, path)
    heads = family.heads_of(class_in(content))
    tasks = {"classify": problem_in(content, labels, path)} if "classify" in heads else {}
    objective = ours.get("objective") or "+".join(tasks.get(head, head) for head in sorted(heads))
    config = family.read_config(content, str(path))
    pooling = family.poolings.get(getattr(config, "classifier_pooling", ""), "start")
    known = {"labels": tuple(labels), "pooling": pooling, **ours.get("options", {})}
    known |= {"embedding": _embedding_in(folder)} if "embedding" in ours else {}
    return parse_objective(objective, ours.get("tasks"), **known) if objective else None


def closed_head(reference: str | Path) -> str:
    """Return what head of `transformers` a model was published with that pretune does not have, for messages; "" if none."""
    family, content = read_config(find_folder(reference))
    head = family.closed_classes.get(kind := class_in(content), "")
    return f"its class {kind} has {head}" if head else ""


def embedding_of(reference: str | Path) -> TextEmbedding | None:
    """How a model computes vectors of texts, where its folder says so."""
    return _embedding_in(find_folder(reference))


def _embedding_in(folder: Path) -> TextEmbedding | None:
    if (layout := read_layout(folder)) is not None:
        return layout.embedding
    content = read_config(folder)[1].get("pretune", {}).get("embedding")
    return TextEmbedding.read(content, str(folder / CONFIG)) if content else None


def _heads_in(family: Family, content: Mapping[str, Any]) -> set[str]:
    """The heads that a checkpoint may have: those of its class, and what it was trained for."""
    trained = content.get("pretune", {}).get("objective", "")
    parts = parse_objective(trained).objectives if trained else ()
    kind = class_in(content)
    published = (heads for heads, name in family.classes.items() if name == kind)
    return {name for part in parts for name in (part.kind, part.name)}.union(family.heads_of(kind), *published)


def load(reference: str | Path, *, partial: bool = False) -> Model:
    """Load a model with its heads and its tokenizer: a run, a bundled model, or a folder in the Hugging Face layout.

    Weights are model.safetensors or pytorch_model.bin, whole or in shards; a pickle is read only if it holds plain tensors
    and nothing else. Every key of config.json and every tensor must be known: what may change the output and is not supported
    is refused by name. With `partial`, unknown keys and tensors are left out, and tensors that are missing or of another shape
    are left random; all are listed.

    >>> load("pretune-small-en").family.name
    'modernbert'
    """
    model = load_model(reference, trained_for(reference), partial=partial)
    model.say_left_out(reference)
    return model


def load_model(
    reference: str | Path,
    objectives: Mixture | None = None,
    seed: int = 0,
    partial: bool = False,
    dropout: Mapping[str, float] | None = None,
) -> Model:
    """Load a model from a run folder or a folder in the Hugging Face layout.

    With `objectives`, it gets their heads: from the checkpoint where it has them, else new ones. A checkpoint that lacks
    parts of the backbone, or has keys or tensors that nobody knows, is refused with a list, unless `partial`. `dropout` goes
    before that of its config, under the names it has there.

    >>> model = load_model("runs/mine")  # doctest: +SKIP
    """
    folder = find_folder(reference)
    family, content = read_config(folder)
    path = folder / CONFIG
    config = family.read_config(content, str(path))
    config = replace(config, **checked_dropout(config, dropout or {}, path))
    _check_keys(path, family, content, partial)
    ours = content.get("pretune", {})
    graph = (folder / GRAPH) if ours.get("engine") else None
    if graph is not None and "graph_sha256" in ours and file_digest(graph) != ours["graph_sha256"]:
        raise PretuneError(
            f"{graph}: the graph does not match its checksum; the file is damaged: restore it from its source"
        )
    tensors = read_weights(folder) if graph is None else {}
    sparse = any(is_sparse(name) for name in tensors)
    tensors = _in(folder, lambda: family.table.today(restored(tensors)))
    if family.is_tied(config) and family.table.has_own_output(tensors):
        say(
            f"{folder}: {family.table.output} is not the token embedding, so it is kept, although config.json ties both"
        )
        config = replace(config, tie_word_embeddings=False)
    tied = family.is_tied(config)
    head_tensors = read_tensors(folder / HEAD) if (folder / HEAD).is_file() else {}
    check_finite(head_tensors, folder / HEAD)
    shape = Shape.read(ours.get("shape", {}))
    if graph is None and count_layers(config) > max(FEW_LAYERS, len(tensors)):
        raise PretuneError(
            f"{path}: asks for {count_layers(config)} layers, but the weights have {len(tensors)} tensors"
        )
    with torch.device("meta"), Undrawn():  # shapes alone
        blueprint = _in(path, lambda: shape.apply(family.build(config)))
    if graph is None:
        check_memory(path, blueprint, tensors)
        with Undrawn():
            root = Root(shape.apply(family.build(config)))
    else:
        running: Any = OnnxBackbone(graph, blueprint)
        root = Root(running)
    model = Model(family, config, root, _tokenizer(folder), shape=shape, sparse=sparse)
    model.objective = ours.get("objective", "")
    model.labels = labels_of(folder, family, content, path)
    model.options, model.tasks = ours.get("options", {}), ours.get("tasks", {})
    layout = read_layout(folder)
    model.embedding = _embedding_in(folder)
    model.max_length = layout.max_length if layout is not None else ours.get("max_length")
    if layout is not None:
        model._check_encoder(folder)
        model.tokenizer = model.tokenizer and layout.prepare(model.tokenizer)
    if objectives is not None:
        model.add_heads(objectives.objectives, seed)
    if layout is not None and model.embedding_head is not None:
        head_tensors |= layout.tensors(model.embedding_head[0])
    if model.embedding is not None and model.embedding.learned and model.embedding_head is None:
        model.embedding = None  # a description without the parameters
        say(f"{folder}: the layers after the pooling of its text embeddings are left out; `contrast` keeps them")
    wanted = model.root.tensors()
    heads = _heads_in(family, content)
    found, missing, extra = _in(folder, lambda: family.table.read(tensors, wanted, heads, tied))
    found |= _of_its_kind(family, tensors, wanted, objectives, heads, tied)
    # A head of another shape (another number of classes) counts as missing.
    found |= {n: t for n, t in head_tensors.items() if n in wanted and t.shape == wanted[n].shape}
    missing = [name for name in missing if name not in found]
    learned = dict(model.root.named_parameters())
    model.untrained = [name for name in missing if name in learned]
    _check(folder, find_misfits(family, tensors, wanted, missing, extra, len(model.labels)), partial)
    model.left_out = heads_left_out(family.table, extra)
    if lacking := [name for name in model.untrained if name.startswith("backbone.")]:
        drawn = Root(model.fresh(seed)).tensors()
        found |= {name: drawn[name] for name in lacking}
    new_heads = sorted({name.split(".")[1] for name in model.untrained if name.startswith("heads.")})
    if new_heads:
        say(f"{folder}: new, untrained parameters for {', '.join(new_heads)}")
    model.root.load_state_dict(found, strict=False)
    stop_attention_dropout(model.root)  # config.json goes on saying what it says
    if model.tokenizer is not None and model.tokenizer.size > config.vocab_size:
        raise PretuneError(
            f"{folder}: the tokenizer has {model.tokenizer.size} tokens but the model only {config.vocab_size}; "
            "they do not belong together"
        )
    for theirs, own in model.tokenizer.other_frames(family.template) if model.tokenizer is not None else ():
        say(f"{folder}: tokenizer.json has the template {theirs!r}; {own!r}, that of {family.name}, is used instead")
    return model


def _borrows_head(objective: Objective) -> bool:
    """Return whether an objective may use the head of another one, which is then built first."""
    return isinstance(objective, Named) or objective.head_of != objective.name


def _of_its_kind(
    family: Family,
    tensors: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    objectives: Mixture | None,
    heads: Collection[str],
    tied: bool,
) -> dict[str, Tensor]:
    """What a checkpoint has for heads of tasks with names of their own, such as BERT's pooler: all start from the same."""
    found: dict[str, Tensor] = {}
    for task in (part for part in (objectives.objectives if objectives else ()) if isinstance(part, Named)):
        own, kind = f"heads.{task.name}.", f"heads.{task.task.head_of}."
        twins = {kind + name.removeprefix(own): tensor for name, tensor in wanted.items() if name.startswith(own)}
        read, _, _ = family.table.read(dict(tensors), twins, heads, tied)
        found |= {own + name.removeprefix(kind): tensor for name, tensor in read.items()}
    return found


def _check_keys(path: Path, family: Family, content: Mapping[str, Any], partial: bool) -> None:
    """Refuse keys of config.json that nobody knows, or say which they are."""
    if unknown := family.unknown_keys(content):
        listed = f"{path}: keys that no {family.name} has, and that may change its output: {', '.join(unknown)}"
        if not partial:
            raise PretuneError(f"{listed}{if_option('partial', '; go on without them with --partial')}")
        say(f"{listed}; they were left out")


def _check(folder: Path, misfits: Mapping[str, Sequence[str]], partial: bool) -> None:
    """Refuse a checkpoint that does not fit the model, or say what does not."""
    listed = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in misfits.items())
    if listed and not partial:
        raise PretuneError(f"{folder}: {listed}{if_option('partial', '; go on without them with --partial')}")
    if listed:
        say(f"{folder}: {listed}; what the model lacks was left random")


def check_memory(path: Path, blueprint: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Refuse a configuration of a network far larger than its weights, before memory is taken for it."""
    described = sum(x.numel() for x in (*blueprint.parameters(), *blueprint.buffers()))
    stored = sum(x.numel() for x in tensors.values())
    if described > 8 * stored + SPARE_NUMBERS:
        raise PretuneError(
            f"{path}: describes a network of {described:,} numbers, but the weights have {stored:,}; its sizes are damaged"
        )


def _in(place: Path, read: Callable[[], Result]) -> Result:
    """Return what is read of a file or folder, which errors then name."""
    try:
        return read()
    except PretuneError as error:
        raise PretuneError(f"{place}: {error}") from error


def checked_dropout(config: Any, dropout: Mapping[str, float], path: Path) -> dict[str, float]:
    """Return dropout that goes before a configuration's, under the names it has there."""
    known = [field.name for field in fields(config) if "drop" in field.name]
    for name, share in dropout.items():
        if name not in known:
            raise PretuneError(f"{path}: no dropout {name!r}; {nearest(name, known)}")
        if not 0 <= share < 1:
            raise PretuneError(f"dropout.{name}={share:g}: give a share of at least 0 and below 1")
    return dict(dropout)


def find_folder(reference: str | Path) -> Path:
    """The folder behind a model reference; of a sentence-transformers folder, that of its Transformer."""
    folder = transformer_folder(Path(reference))
    if (folder / CONFIG).is_file():
        if str(reference) in (*boxed_names(), *preset_names()):
            _say_once(
                f"{reference}: the folder of that name, which holds a model, goes before the preset or bundled model"
            )
        return folder
    if folder.is_dir():
        raise PretuneError(f"{folder}: no model here (no {CONFIG})")
    name = str(reference)
    if name in boxed_names():
        return boxed_folder(name)
    if is_preset(name):
        raise PretuneError(f"{name} is a preset without weights; pretrain it first, or name a folder")
    if len(folder.parts) > 1:
        raise PretuneError(f"{name}: no such folder")
    instead = f"known: {', '.join(boxed_names())}, and what `pretune show presets` lists"
    hint = nearest(name, [*boxed_names(), *preset_names()], instead)
    raise PretuneError(f"{name}: neither a model folder nor a name that is known; {hint}")


def _tokenizer(folder: Path) -> Tokenizer | None:
    try:
        return Tokenizer.load(folder)
    except PretuneError as error:
        if "no tokenizer here" in str(error):
            return None
        raise
