"""Kill training at random moments, resume it each time, and compare with one that was never killed.

    python tests/support/kill_training.py KILLS [SEED]

The training evaluates and saves all the time, so that kills fall into steps, checkpoint writes and evaluations alike.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.support.paths import ROOT

CHILD = """
import sys
sys.path[:0] = [{here!r}]
import torch
torch.set_num_threads(1)
from dataclasses import replace
from pathlib import Path
from tests.support.tiny_training_cases import make
from pretune.training import checkpoints, loop, resume
folder = Path({folder!r})
stage = folder / "stage"

def marked(name, function):
    def run(*arguments, **options):
        stage.write_text(name)
        try:
            return function(*arguments, **options)
        finally:
            stage.write_text("step")
    return run

resume.Checkpointing.save = marked("copy", resume.Checkpointing.save)
checkpoints.Saver._write = marked("save", checkpoints.Saver._write)  # in a separate thread
t = make("mlm+nsp", {steps}, folder, save=2)
stream = t.streams.streams[0]
batches = [stream.batch(0, i, 0.0) for i in range(2)]
t.evaluate = marked("evaluation", lambda: loop.evaluate_loss(t.root, stream.joint, batches, t.device))
t.monitor = replace(t.monitor, eval_every=3, save_total_limit=3)
stage.write_text("step")
loop.train(t, resume=True)
from safetensors.torch import save_file
save_file({{n: x.detach().contiguous() for n, x in t.root.tensors().items()}}, str(folder / "final.safetensors"))
"""
STEPS = 16  # of training, per kill: it must last that long


def kill_often(kills: int, seed: int) -> Counter[str]:
    """Kill training `kills` times, print what it was doing each time, and fail if the final weights differ."""
    rng = random.Random(seed)
    here = str(ROOT)
    doing: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:

        def start(name: str) -> subprocess.Popen[bytes]:
            place = Path(folder) / name
            place.mkdir(exist_ok=True)
            (place / "stage").write_text("start")
            script = CHILD.format(here=here, folder=str(place), steps=STEPS * kills)
            return subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)

        assert start("whole").wait() == 0
        stage = Path(folder) / "killed" / "stage"
        seen = 0
        for _ in range(kills):
            process = start("killed")
            # It must make progress before it is killed, or all kills hit the same first step.
            while newest(Path(folder) / "killed") <= seen and process.poll() is None:
                time.sleep(0.001)
            time.sleep(rng.uniform(0.0, 0.06))
            doing[stage.read_text() or "step"] += 1
            seen = newest(Path(folder) / "killed")
            process.kill()
            if process.wait() == 0:
                doing["already over"] += 1
                break
        assert start("killed").wait() == 0
        expected, found = ((Path(folder) / name / "final.safetensors").read_bytes() for name in ("whole", "killed"))
        assert expected == found, f"seed {seed}: the weights differ"
    return doing


def newest(run: Path) -> int:
    """Return the step of the newest checkpoint."""
    steps = [int(path.name.removeprefix("step-")) for path in (run / "checkpoints").glob("step-*")]
    return max(steps, default=0)


def main() -> None:
    kills = int(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else int.from_bytes(os.urandom(4), "little")
    began = time.monotonic()
    print(f"seed {seed}", flush=True)
    doing = kill_often(kills, seed)
    print(f"{sum(doing.values())} kills ({dict(doing)}), the same bits, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
