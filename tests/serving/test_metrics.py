"""Tests of the metrics of the server."""

from __future__ import annotations

from pretune.serving.metrics import Histogram, ServerMetrics, format_labels


def test_histograms_are_cumulative() -> None:
    histogram = Histogram("seconds", "Time.", ["route"], [0.1, 1.0])
    for value in (0.1, 0.5, 7.0):
        histogram.observe(value, "/a")
    assert list(histogram.lines()) == [
        "# HELP seconds Time.",
        "# TYPE seconds histogram",
        'seconds_bucket{route="/a",le="0.1"} 1',
        'seconds_bucket{route="/a",le="1"} 2',
        'seconds_bucket{route="/a",le="+Inf"} 3',
        'seconds_sum{route="/a"} 7.6',
        'seconds_count{route="/a"} 3',
    ]


def test_labels_are_escaped() -> None:
    assert format_labels(["a", "b"], ['x"\\\n', "y"]) == '{a="x\\"\\\\\\n",b="y"}'
    assert format_labels([], []) == ""


def test_counts_are_written_in_full() -> None:
    metrics = ServerMetrics()
    metrics.requests.values["/a", "200"] = 12_345_678
    assert 'pretune_requests_total{route="/a",code="200"} 12345678\n' in metrics.text()
