"""Networks that teach: frozen, nobody's parameters, and read by all who learn from them once for a batch."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from pretune.models.model import Root


def frozen(root: Root, device: torch.device) -> Root:
    """A copy that nothing moves, where the student is, and as exact as the student."""
    copy = deepcopy(root).requires_grad_(False).eval().to(device)
    copy.compute_in(torch.bfloat16 if device.type == "cuda" else torch.float32)
    return copy


def beside(student: Any, teacher: Any) -> Any:
    """A teacher's backbone, computed once for all objectives where its student's is."""
    return student.beside(teacher) if hasattr(student, "beside") else teacher
