"""Teachers of distillation: frozen models, each run once per batch for all objectives that learn from it."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Protocol

import torch

from pretune.objectives.wrappers import WrappedBackbone


class Teacher(Protocol):
    """A trained model that a student learns from: a backbone, and output heads by the names of their objectives."""

    backbone: Any

    @property
    def heads(self) -> Any:
        """Return the output heads of the model, keyed by the names of their objectives."""


def frozen_copy(root: Any, device: torch.device) -> Any:
    """Return a frozen copy of the model `root` on `device`, in evaluation mode.

    Activations are bfloat16 on a GPU, else float32.
    """
    copy = deepcopy(root).requires_grad_(False).eval().to(device)
    copy.set_activation_dtype(torch.bfloat16 if device.type == "cuda" else torch.float32)
    return copy


def cached_teacher(student: Any, teacher: Any) -> Any:
    """Return the backbone `teacher`, with a cache of its hidden states if the backbone `student` has such a cache."""
    return student.cached_other(teacher) if isinstance(student, WrappedBackbone) else teacher
