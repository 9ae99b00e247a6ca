"""Teachers of distillation: frozen models, run once per batch for all objectives that learn from them."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, Protocol

import torch

from pretune.objectives.wrappers import WrappedBackbone


class Teacher(Protocol):
    """A trained model: a backbone, and heads by the name of their objective."""

    backbone: Any

    @property
    def heads(self) -> Any:
        """Return the heads by name."""


def frozen_copy(root: Any, device: torch.device) -> Any:
    """Return a frozen copy of a model on the student's device, in the student's precision."""
    copy = deepcopy(root).requires_grad_(False).eval().to(device)
    copy.set_activation_dtype(torch.bfloat16 if device.type == "cuda" else torch.float32)
    return copy


def cached_teacher(student: Any, teacher: Any) -> Any:
    """Return a teacher's backbone, cached if the student's is."""
    return student.beside(teacher) if isinstance(student, WrappedBackbone) else teacher
