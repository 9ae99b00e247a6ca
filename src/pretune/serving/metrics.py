"""The metrics of the server in the text format of Prometheus."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)  # bounds of latencies
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)  # bounds of batch sizes
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metric:
    """A Prometheus counter or gauge with labels.

    >>> metric = Metric("jobs_total", "Jobs done.", "counter", ["kind"])
    >>> metric.values["small",] += 2
    >>> list(metric.lines())[-1]
    'jobs_total{kind="small"} 2'
    """

    def __init__(self, name: str, text: str, kind: str, labels: Sequence[str]) -> None:
        self.name, self.text, self.kind, self.labels = name, text, kind, labels
        self.values: Counter[tuple[str, ...]] = Counter()

    def lines(self) -> Iterator[str]:
        """Yield the metric in the text format of Prometheus, line by line."""
        yield f"# HELP {self.name} {self.text}"
        yield f"# TYPE {self.name} {self.kind}"
        for values, number in sorted(self.values.items()):
            yield f"{self.name}{format_labels(self.labels, values)} {number:.15g}"


class Histogram:
    """A Prometheus histogram with labels."""

    def __init__(self, name: str, text: str, labels: Sequence[str], bounds: Sequence[float]) -> None:
        self.name, self.text, self.labels, self.bounds = name, text, labels, (*bounds, math.inf)
        self.counts: dict[tuple[str, ...], list[int]] = {}
        self.sums: defaultdict[tuple[str, ...], float] = defaultdict(float)

    def observe(self, value: float, *labels: str) -> None:
        """Count a value in the buckets of the given labels."""
        counts = self.counts.setdefault(labels, [0] * len(self.bounds))
        counts[bisect_left(self.bounds, value)] += 1
        self.sums[labels] += value

    def lines(self) -> Iterator[str]:
        """Yield the histogram in the text format of Prometheus, line by line."""
        yield f"# HELP {self.name} {self.text}"
        yield f"# TYPE {self.name} histogram"
        for values, counts in sorted(self.counts.items()):
            for bound, total in zip(self.bounds, accumulate(counts), strict=True):
                end = "+Inf" if bound == math.inf else f"{bound:g}"
                yield f"{self.name}_bucket{format_labels([*self.labels, 'le'], [*values, end])} {total}"
            yield f"{self.name}_sum{format_labels(self.labels, values)} {self.sums[values]:.15g}"
            yield f"{self.name}_count{format_labels(self.labels, values)} {sum(counts)}"


class ServerMetrics:
    """All metrics of a server, such as the number of requests and their latency."""

    def __init__(self) -> None:
        self.requests = Metric("pretune_requests_total", "Answered requests.", "counter", ["route", "code"])
        self.latency = Histogram("pretune_request_seconds", "Time to answer a request.", ["route"], SECONDS)
        self.batches = Histogram("pretune_batch_size", "Items of a batch.", ["model", "operation"], SIZES)
        self.computing = Histogram("pretune_batch_seconds", "Time to compute a batch.", ["model", "operation"], SECONDS)
        self.queue = Metric("pretune_queue_length", "Items that wait to be computed.", "gauge", ["model"])
        self.streams = Metric("pretune_streams", "Texts that are being streamed.", "gauge", ["model"])
        self.restarts = Metric("pretune_worker_restarts_total", "Restarts after a crash.", "counter", ["model"])
        self.versions = Metric("pretune_model_version", "Version of the model in use.", "gauge", ["model"])
        self.ready = Metric("pretune_model_ready", "Whether the model can answer.", "gauge", ["model"])

    def text(self) -> str:
        """Return all metrics of the server in the text format of Prometheus."""
        return "".join(f"{line}\n" for metric in vars(self).values() for line in metric.lines())


def format_labels(names: Sequence[str], values: Sequence[str]) -> str:
    """Return labels in the text format of Prometheus, as they follow the name of a metric.

    >>> format_labels(["model"], ['a "b"'])
    '{model="a \\\\"b\\\\""}'
    """
    if not names:
        return ""
    escaped = (value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for value in values)
    return "{" + ",".join(f'{name}="{value}"' for name, value in zip(names, escaped, strict=True)) + "}"
