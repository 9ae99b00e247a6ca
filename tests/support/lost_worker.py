"""Run the command line in a process of torchrun that is killed.

The second process is killed once, in the middle of its sixth step. With KILLS=n,seed, a random process is killed n times, at a random
moment after the run has continued.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import torch

from pretune.cli import main
from pretune.objectives.objective import Loss

over = Loss.over


def kill_in_step(self: Loss, totals: dict[str, float]) -> torch.Tensor:
    """Kill the process between a forward and a backward pass."""
    kill_in_step.calls += 1  # type: ignore[attr-defined]
    if kill_in_step.calls == 12:  # type: ignore[attr-defined]
        os.kill(os.getpid(), signal.SIGKILL)
    return over(self, totals)


def die_at_random(rng: random.Random) -> None:
    """Kill the process at a random moment after its first step."""
    over_once = threading.Event()

    def watched(self: Loss, totals: dict[str, float]) -> torch.Tensor:
        over_once.set()
        return over(self, totals)

    def end() -> None:
        over_once.wait()
        time.sleep(rng.uniform(0.0, 1.0))
        os.kill(os.getpid(), signal.SIGKILL)

    Loss.over = watched  # type: ignore[method-assign]
    threading.Thread(target=end, daemon=True).start()


if __name__ == "__main__":
    torch.set_num_threads(1)
    rank, before = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if "KILLS" in os.environ:
        kills, seed = map(int, os.environ["KILLS"].split(","))
        rng = random.Random(seed + before)
        if before < kills and rng.randrange(int(os.environ["WORLD_SIZE"])) == rank:
            die_at_random(rng)
    elif rank == 1 and before == 0:
        kill_in_step.calls = 0  # type: ignore[attr-defined]
        Loss.over = kill_in_step  # type: ignore[method-assign]
    main()
