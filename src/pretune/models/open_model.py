"""Open models: a model folder whose weights are kept in memory, so that several calls read them once."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from pretune.models.bundled import bundled_names
from pretune.models.checkpoint_heads import stored_objectives
from pretune.models.model import Model, Network
from pretune.models.name_resolution import ModelReference, find_folder
from pretune.nn.initialization import SkipInitialization
from pretune.objectives import Mixture, Objective, RenamedTask


class OpenModel:
    """A model folder whose weights are kept in memory for inference; functions accept it in place of a folder.

    The weights are read at the first use. Models with other heads share the parameters of the backbone.

    >>> model = OpenModel("pretune-small-en")
    >>> model.load() is model.core, model.load().backbone is model.core.backbone
    (False, True)
    """

    def __init__(self, reference: ModelReference, *, ignore_mismatched: bool = False, keep_alive: Any = None) -> None:
        """Find the model folder, without reading weights; `keep_alive` is an object that must outlive the model."""
        found = find_folder(reference)  # raises an error if there is no model
        named = os.fspath(reference)
        self.folder = Path(os.path.abspath(named if os.path.isdir(named) else found))
        self.reference = named if named in bundled_names() and not os.path.isdir(named) else str(self.folder)
        self.ignore_mismatched, self.keep_alive = ignore_mismatched, keep_alive
        self._reread: dict[str, Model] = {}

    def __fspath__(self) -> str:
        return str(self.folder)

    def __str__(self) -> str:
        return self.reference

    def __repr__(self) -> str:
        return f"OpenModel({self.reference!r})"

    @cached_property
    def stored(self) -> Mixture | None:
        """The objectives that the model has trained heads for, or None if it has no heads."""
        return stored_objectives(self.folder)

    @cached_property
    def core(self) -> Model:
        """The model with all of its trained heads."""
        from pretune.models.loading import load

        model = load(self.folder, ignore_mismatched=self.ignore_mismatched)
        model.root.eval()
        return model

    def warm_up(self) -> None:
        """Read the weights, and pack those of linear layers for a CPU, as a server does before the first request.

        Predictions become faster, change in their last digits, and need memory for a second copy of these weights.

        >>> OpenModel("pretune-small-en").warm_up()
        """
        self.core.root.pack_weights()

    def load(self, objectives: Mixture | None = None, ignore_mismatched: bool = False) -> Model:
        """Return the model with heads for the given objectives; its parameters are shared with other calls.

        The files are read a second time only if `objectives` need heads with parameters that the loaded model does not
        have.
        """
        self.ignore_mismatched = self.ignore_mismatched or ignore_mismatched
        if objectives is not None and objectives == self.stored:
            return self.core
        heads = share_heads(self.core, objectives.objectives if objectives is not None else ())
        if heads is not None:
            return with_heads(self.core, heads)
        if (name := repr(objectives)) not in self._reread:
            self._reread[name] = self._read_again(objectives)
        return self._reread[name]

    def _read_again(self, objectives: Mixture | None) -> Model:
        """Read the model with the heads of `objectives` from its folder; the backbone in memory is shared with it."""
        from pretune.models.loading import load_model

        model = load_model(self.folder, objectives, ignore_mismatched=self.ignore_mismatched)
        own = {id(parameter) for parameter in model.backbone.parameters()}
        if not any(id(parameter) in own for parameter in model.root.heads.parameters()):  # tied to the embeddings
            model.root.backbone = self.core.backbone
        model.root.eval()
        return model


class ModelHandle(ABC):
    """The base class of objects that commands accept in place of the path of a model: runs and loaded models."""

    @property
    @abstractmethod
    def open_model(self) -> OpenModel:
        """The model that this object stands for, as an `OpenModel`, which keeps the weights in memory."""

    @property
    @abstractmethod
    def reference(self) -> str:
        """The path of the model, or its name if it is a bundled model."""

    @abstractmethod
    def __fspath__(self) -> str: ...


def share_heads(model: Model, objectives: Iterable[Objective]) -> dict[str, nn.Module] | None:
    """Return new heads that share the parameters of a model's heads; None if the model lacks one of these heads."""
    made: dict[str, nn.Module] = {}
    # As in `Model.add_heads`: an objective that uses the head of another one comes after it.
    for objective in sorted(objectives, key=lambda x: isinstance(x, RenamedTask) or x.shared_head != x.name):
        owner = objective.shared_head
        if owner not in made:
            with torch.random.fork_rng(devices=[]), SkipInitialization():
                head = objective.head(model.backbone)
            known = model.root.heads[owner].state_dict(keep_vars=True) if owner in model.root.heads else {}
            wanted = head.state_dict()
            if {name: x.shape for name, x in wanted.items()} != {name: x.shape for name, x in known.items()}:
                if wanted:
                    return None
            elif wanted:
                head.load_state_dict(known, assign=True)
            made[owner] = head
        made[objective.name] = made[owner]
    return made


def with_heads(model: Model, heads: dict[str, nn.Module]) -> Model:
    """Return a copy of a model that shares its backbone and has the given heads, in evaluation mode."""
    root = Network(model.backbone, heads.items()).eval()
    random = {id(model.root.get_parameter(name)) for name in model.untrained}
    untrained = [name for name, parameter in root.named_parameters() if id(parameter) in random]
    return replace(model, root=root, untrained=untrained)
