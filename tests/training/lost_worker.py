"""The command line, in a process that torchrun started; the second one is killed in the middle of its sixth step, once."""

from __future__ import annotations

import os
import signal

import torch

from pretune.cli import main
from pretune.objectives.objective import Loss

over = Loss.over


def dying(self: Loss, totals: dict[str, float]) -> torch.Tensor:
    """Between forward and backward."""
    dying.calls += 1  # type: ignore[attr-defined]
    if dying.calls == 12:  # type: ignore[attr-defined]
        os.kill(os.getpid(), signal.SIGKILL)
    return over(self, totals)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        dying.calls = 0  # type: ignore[attr-defined]
        Loss.over = dying  # type: ignore[method-assign]
    main()
