# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Metrics in Prometheus's text format.

They are read from the server's own counts when they are scraped, so requests pay nothing for them.
Names of models in labels come from the repository, never from requests: a client cannot make new
time series.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from dovetail_serve.errors import RequestError
from dovetail_serve.http.stages import Stages, StageTimes
from dovetail_serve.serving.server import Server
from dovetail_serve.serving.statistics import BOUNDS_S, Statistics, cumulative

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_VERSION = ["model", "version"]
# Fixed, because sums over servers by bound must not fall from one bound to the next.
_BOUNDS_ROWS = tuple(2**power for power in range(13))


def exposition(server: Server, stages: Stages) -> bytes:
    """Returns all metrics in the text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(server, stages))
    return generate_latest(registry)


class _Collector(Collector):
    """Reads the counts of a server at the time of a scrape."""

    def __init__(self, server: Server, stages: Stages) -> None:
        self._server, self._stages = server, stages

    def collect(self) -> Iterator[Metric]:
        families = _Families()
        for state in self._server.index():
            labels = (state.name, state.version)
            families.ready.add_metric(labels, float(state.state == "READY"))
            try:
                counts = self._server.statistics(*labels)
            except RequestError:
                continue  # never loaded; old versions on the disk may be thousands
            families.add(labels, counts, self._stages.times.get(labels, StageTimes()))
        for status, number in sorted(self._stages.responses.items()):
            families.responses.add_metric((str(status),), number)
        yield from families


class _Families:
    """The metrics of all versions. A batch's rows are a histogram with powers of two."""

    def __init__(self) -> None:
        prefix = "dovetail_serve"
        self.requests = CounterMetricFamily(
            f"{prefix}_requests",
            'Requests by outcome: "ok", or the kind of error; "cancelled" by the client.',
            labels=[*_VERSION, "outcome"],
        )
        self.rows = CounterMetricFamily(
            f"{prefix}_rows", "Rows of the requests that were answered.", labels=_VERSION
        )
        self.seconds = CounterMetricFamily(
            f"{prefix}_stage_seconds",
            "Time of the answered requests by stage. The stages from queue to split hold requests "
            "of all protocols, decode and encode those of HTTP.",
            labels=[*_VERSION, "stage"],
        )
        self.latency = HistogramMetricFamily(
            f"{prefix}_request_seconds",
            "Time of the answered requests from the queue to the answer.",
            labels=_VERSION,
        )
        self.batches = HistogramMetricFamily(
            f"{prefix}_batch_rows", "Rows of a batch, without padding.", labels=_VERSION
        )
        self.queued = GaugeMetricFamily(
            f"{prefix}_queued_requests", "Requests that wait now.", labels=_VERSION
        )
        self.loads = CounterMetricFamily(
            f"{prefix}_loads", "Loads of a version by outcome.", labels=[*_VERSION, "outcome"]
        )
        self.ready = GaugeMetricFamily(
            f"{prefix}_version_ready", "1 if the version takes requests.", labels=_VERSION
        )
        self.last = GaugeMetricFamily(
            f"{prefix}_last_inference_timestamp_seconds",
            "Time of the last answer since 1970; 0 before the first.",
            labels=_VERSION,
        )
        self.responses = CounterMetricFamily(
            f"{prefix}_http_responses",
            "HTTP responses by status; 499 for clients that went away.",
            labels=["status"],
        )

    def __iter__(self) -> Iterator[Metric]:
        return iter(vars(self).values())

    def add(self, labels: tuple[str, str], counts: Statistics, times: StageTimes) -> None:
        """Adds the samples of one version.

        Args:
            labels: Name of the model, and the version.
            counts: Requests, rows, batches and loads so far.
            times: Seconds of decoding and encoding so far.
        """
        self.requests.add_metric((*labels, "ok"), counts.successes)
        for kind, number in sorted(counts.failures.items()):
            self.requests.add_metric((*labels, kind), number)
        self.rows.add_metric(labels, counts.rows)
        for stage, seconds in stage_seconds(counts, times).items():
            self.seconds.add_metric((*labels, stage), seconds)
        bounds = [*map(str, BOUNDS_S), "+Inf"]
        cells = list(zip(bounds, map(float, cumulative(counts.histogram)), strict=True))
        self.latency.add_metric(labels, cells, counts.total_s)
        self.batches.add_metric(labels, *_by_powers(counts.batches))
        self.queued.add_metric(labels, counts.queued)
        self.loads.add_metric((*labels, "ok"), counts.loads)
        self.loads.add_metric((*labels, "failed"), counts.failed_loads)
        self.last.add_metric(labels, counts.last_inference)


def stage_seconds(counts: Statistics, times: StageTimes) -> dict[str, float]:
    """Returns the summed seconds by stage, in the order of a request."""
    return {
        "decode": times.decode_s,
        "queue": counts.queue_s,
        "pad": counts.pad_s,
        "compute": counts.compute_s,
        "split": counts.split_s,
        "encode": times.encode_s,
    }


def _by_powers(batches: dict[int, int]) -> tuple[list[tuple[str, float]], float]:
    """Returns cumulative counts of batches up to powers of two rows, and the sum of their rows."""
    cells = [
        (str(float(bound)), float(sum(n for b, n in batches.items() if b <= bound)))
        for bound in _BOUNDS_ROWS
    ]
    total = float(sum(batches.values()))
    return [*cells, ("+Inf", total)], float(sum(size * n for size, n in batches.items()))
