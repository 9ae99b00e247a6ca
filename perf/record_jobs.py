"""Run jobs that need each other's results, in parallel and until a deadline, and save each result at once.

A job is a command with a key. Its row is appended to results.jsonl, and written to the disk, as soon as it ends: what it found, or
its error. A job with a row is never run again; one that the deadline interrupts has none, and is resumed by the next call.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Rows = dict[str, dict[str, Any]]  # one row per job that has ended, by key
RESULTS = "results.jsonl"
GRACE = 25.0  # seconds before the deadline at which running jobs are interrupted, so that they can save a checkpoint


@dataclass(frozen=True)
class Job:
    """A command to run, what it needs, and how to read what it found."""

    key: str
    command: Sequence[str]
    read: Callable[[], dict[str, Any]]
    kind: str  # jobs of one kind share a limit of how many run at a time
    needs: tuple[str, ...] = ()  # keys of jobs that must have ended without an error
    facts: Mapping[str, Any] = field(default_factory=dict)  # columns of its row that are known before
    seconds: float = 0.0  # it is not started if less time is left
    fresh: Path | None = None  # the folder of a run that cannot be resumed, which is deleted first


def read_rows(file: Path) -> Rows:
    """Return the rows of a results file by key; the last of several counts, and a line that was cut off is ignored."""
    rows: Rows = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else []:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        rows[row["key"]] = row
    return rows


def add_row(file: Path, row: Mapping[str, Any]) -> None:
    """Append a row to a results file, and wait until it is on the disk."""
    file.parent.mkdir(parents=True, exist_ok=True)
    # A line that was cut off, without its end, must not swallow this one.
    torn = file.is_file() and not file.read_bytes().endswith(b"\n") and file.stat().st_size > 0
    with file.open("a", encoding="utf-8") as results:
        results.write("\n" * torn + json.dumps(row, ensure_ascii=False) + "\n")
        results.flush()
        os.fsync(results.fileno())


def forget_failures(file: Path) -> None:
    """Remove the rows of failed jobs from a results file, so that they are repeated."""
    rows = [row for row in read_rows(file).values() if "error" not in row]
    new = file.with_suffix(".new")
    new.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    new.replace(file)


class JobRunner:
    """A runner of jobs; `plan` returns the jobs that are known, given the rows so far, in the order of their urgency."""

    def __init__(
        self,
        plan: Callable[[Rows], list[Job]],
        home: Path,
        limits: Mapping[str, int],
        facts: Mapping[str, Any] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to run the jobs of a plan in the folder `home`, at most `limits[kind]` of a kind at a time.

        `facts` are columns of all rows, such as the machine.
        """
        self.plan, self.home, self.limits, self.facts, self.now = plan, home, limits, dict(facts or {}), now
        self.running: dict[str, tuple[Job, subprocess.Popen[bytes], float]] = {}

    @property
    def results(self) -> Path:
        """The results file."""
        return self.home / RESULTS

    def run(self, seconds: float, pause: float = 0.2) -> bool:
        """Run jobs until all have ended or the seconds are over; return whether all have ended."""
        deadline = self.now() + seconds
        while True:
            self._collect()
            rows = read_rows(self.results)
            waiting = [job for job in self.plan(rows) if job.key not in rows and job.key not in self.running]
            if not waiting and not self.running:
                return True
            if deadline - self.now() < GRACE:
                self._interrupt(deadline)
                return False
            started = self._start(waiting, rows, deadline)
            if not started and not self.running:
                return False  # there is not enough time for any of them
            time.sleep(pause)

    def _start(self, waiting: list[Job], rows: Rows, deadline: float) -> bool:
        """Start the jobs that can run now, and give those that need a failed one an error; return whether there were any."""
        found = False
        for job in waiting:
            missing = [key for key in job.needs if "error" in rows.get(key, {})]
            if missing:
                self._write(job, {"error": f"it needs {missing[0]}, which failed"})
                found = True
                continue
            busy = sum(one.kind == job.kind for one, _, _ in self.running.values())
            late = deadline - self.now() < job.seconds + GRACE
            if busy >= self.limits.get(job.kind, 1) or late or any(key not in rows for key in job.needs):
                continue
            log = self.home / "logs" / f"{job.key}.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            if job.fresh is not None:
                shutil.rmtree(job.fresh, ignore_errors=True)
            with log.open("ab") as stream:
                process = subprocess.Popen(job.command, stdout=stream, stderr=subprocess.STDOUT)
            self.running[job.key] = job, process, self.now()
            found = True
        return found

    def _collect(self) -> None:
        """Write the rows of the jobs that have ended."""
        for key, (job, process, began) in list(self.running.items()):
            if (code := process.poll()) is None:
                continue
            del self.running[key]
            try:
                found = job.read() if code == 0 else {"error": self._reason(key, code)}
            except Exception as error:  # whatever is wrong with its output must not end the others
                found = {"error": f"{type(error).__name__}: {error}"}
            self._write(job, {"wall_seconds": round(self.now() - began, 1), **found})

    def _reason(self, key: str, code: int) -> str:
        """Return why a job has failed: the last line of its log."""
        lines = (self.home / "logs" / f"{key}.log").read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), f"exit code {code}")[:300]

    def _write(self, job: Job, found: Mapping[str, Any]) -> None:
        row = {"key": job.key, "kind": job.kind, **job.facts, **found, **self.facts}
        add_row(self.results, row)
        shown = {name: value for name, value in found.items() if isinstance(value, (str, int, float))}
        print(job.key, json.dumps(shown, ensure_ascii=False)[:300], flush=True)

    def _interrupt(self, deadline: float) -> None:
        """Interrupt the running jobs, which save a checkpoint; kill those that have not ended at the deadline."""
        for _, process, _ in self.running.values():
            process.send_signal(signal.SIGINT)
        for _, process, _ in self.running.values():
            try:
                process.wait(max(0.1, deadline - self.now()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.running = {key: one for key, one in self.running.items() if one[1].returncode == 0}
        self._collect()  # those that had ended anyway
