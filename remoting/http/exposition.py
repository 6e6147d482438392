"""Conversion of histograms into metrics of Prometheus' client library, without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from prometheus_client.core import Metric

from routekeeper.remoting.histogram import Histogram


def histograms(name: str, help_: str, by_labels: Iterable[tuple[Mapping[str, str], Histogram]]) -> Metric:
    """Return one metric that contains all given histograms, each with its labels."""
    made = Metric(name, help_, "histogram")
    for labels, histogram in by_labels:
        for part, of_sample, value in histogram.samples(labels):
            made.add_sample(name + part, of_sample, value)
    return made
