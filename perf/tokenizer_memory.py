"""Measure the peak memory of training a tokenizer on 1 GB of high-variety text, as a multiple of that on 100 MB.

python perf/tokenizer_memory.py [--small 100] [--large 1000] [--kind wordpiece] [--json]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from common import generate_text, machine

CHILD = """
import resource, sys
import pretune
report = pretune.train_tokenizer(sys.argv[1], kind=sys.argv[2], vocab_size=30_000).report
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, report["pruned_words"], report["seconds"])
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", type=int, default=100)
    parser.add_argument("--large", type=int, default=1000)
    parser.add_argument("--kind", default="wordpiece")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result: dict[str, object] = {"kind": options.kind}
    peaks = []
    with tempfile.TemporaryDirectory() as name:
        for megabytes in (options.small, options.large):
            text = Path(name) / "text.txt"
            generate_text(text, megabytes << 20, new_words=0.5)
            command = [sys.executable, "-c", CHILD, str(text), options.kind]
            answer = subprocess.run(command, check=True, capture_output=True, text=True)
            peak, pruned, seconds = answer.stdout.split()
            peaks.append(int(peak))
            result[f"{megabytes}_MB"] = {"peak_MB": int(peak) // 1024, "pruned": int(pruned), "seconds": float(seconds)}
    result |= {"ratio": round(peaks[1] / peaks[0], 3), **machine()}
    print(json.dumps(result) if options.json else f"peak memory, large / small = {result['ratio']}\n{result}")


if __name__ == "__main__":
    main()
