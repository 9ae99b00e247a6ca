"""Write sample data into a folder: python -m pretune.sample_data FOLDER."""

from __future__ import annotations

import sys

from pretune.sample_data import write_sample_data

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python -m pretune.sample_data FOLDER")
    for path in write_sample_data(sys.argv[1]):
        print(path)
