"""usage: perf/help_time.py [--repeat N]

Measure the processor time of `import pretune` and of `--help`, beside that of Python itself. Processor time, unlike the clock,
hardly depends on other processes; the minimum of several runs is printed. The target for `pretune --help` is 15 times the time of
Python itself: 0.3 s where Python takes 0.02 s.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys

CASES = {
    "python -c pass": ["-c", "pass"],
    "import pretune": ["-c", "import pretune"],
    "import cyclopts": ["-c", "import cyclopts"],
    "pretune --help": ["-m", "pretune", "--help"],
    "pretune fill --help": ["-m", "pretune", "fill", "--help"],
    "pretune finetune --help": ["-m", "pretune", "finetune", "--help"],
    "import torch": ["-c", "import torch"],
}


def processor_seconds(arguments: list[str]) -> float:
    """Return the processor time of a run of Python in seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Bytecode is cached, as in an installed package.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print one row per command: its processor time, and its ratio to that of Python itself."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=7, help="number of runs of each command (default: 7)")
    repeat = parser.parse_args().repeat
    base = 0.0
    for name, arguments in CASES.items():
        seconds = min(processor_seconds(arguments) for _ in range(repeat))
        base = base or seconds
        print(f"{name:<24} {seconds:6.3f} s  {seconds / base:5.1f} × python")


if __name__ == "__main__":
    main()
