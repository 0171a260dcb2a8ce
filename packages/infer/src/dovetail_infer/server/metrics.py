# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Metrics for Prometheus: the engine's counters, and times as clients see them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from dovetail_infer.engine import Engine
from dovetail_infer.stats import Stats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_PREFIX = "dovetail_infer"


class Metrics:
    """Counts and times of a server.

    Attributes:
        responses: Responses by route and status; 499 for a client gone before.
        first_token_s: Seconds from a request to the first piece of its answer.
        between_tokens_s: Seconds between two pieces of one choice of a stream.
        queue_s: Seconds of a request in the queue: the longest of its choices.
        refused: Requests that got an error for an answer, by key and code.
    """

    def __init__(self, engine: Engine) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_Engine(engine))
        to = {"registry": self._registry, "namespace": _PREFIX}
        self.responses = Counter(
            "http_responses",
            "Responses by route and status; 499 for clients that went away.",
            ["route", "status"],
            **to,
        )
        self.first_token_s = Histogram(
            "time_to_first_token_seconds",
            "Time from a request to its first token, of streams.",
            buckets=_SECONDS,
            **to,
        )
        self.between_tokens_s = Histogram(
            "inter_token_latency_seconds",
            "Time between two pieces of one choice, of streams.",
            buckets=_SECONDS,
            **to,
        )
        self.queue_s = Histogram(
            "queue_seconds", "Time of a request in the queue.", buckets=_SECONDS, **to
        )
        self.refused = Counter(
            "refused_requests",
            "Refused requests by the first digits of their key's SHA-256, and by code.",
            ["key", "code"],
            **to,
        )

    def exposition(self) -> bytes:
        """Returns all metrics in the text format."""
        return generate_latest(self._registry)


class _Engine(Collector):
    """Reads the counters of an engine at the time of a scrape."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def describe(self) -> Iterator[Metric]:
        return iter(())

    def collect(self) -> Iterator[Metric]:
        stats = self._engine.stats()
        yield from map(_gauge, *zip(*_gauges(stats), strict=True))
        weights = stats.steps * self._engine.fit.weights_bytes
        read = ("weight_bytes", "Bytes of weights that steps have read.", weights)
        for name, text, value in [*_counters(stats), read]:
            yield CounterMetricFamily(f"{_PREFIX}_{name}", text, value=value)
        pages = GaugeMetricFamily(
            f"{_PREFIX}_pages", "Pages of the cache by window and use.", labels=["window", "use"]
        )
        for group in stats.pages:
            for use in ("used", "cached", "free"):
                window = "all" if group.window is None else str(group.window)
                pages.add_metric([window, use], getattr(group, use))
        yield pages
        finished = CounterMetricFamily(
            f"{_PREFIX}_finished", "Finished requests by reason.", labels=["reason"]
        )
        for reason, count in sorted(stats.finished.items()):
            finished.add_metric([reason], count)
        yield finished


def _gauge(name: str, text: str, value: int | float) -> Metric:
    return GaugeMetricFamily(f"{_PREFIX}_{name}", text, value=value)


def _gauges(stats: Stats) -> list[tuple[str, str, int | float]]:
    return [
        ("waiting_requests", "Requests in the queue.", stats.waiting),
        ("running_requests", "Requests with a place in the steps.", stats.running),
        ("weights_version", "Version of the weights.", stats.version),
        ("compiled_programs", "Programs that are compiled.", stats.compiled),
    ]


def _counters(stats: Stats) -> list[tuple[str, str, int | float]]:
    return [
        ("steps", "Steps.", stats.steps),
        ("failed_steps", "Steps that raised an error.", stats.failed_steps),
        ("prompt_tokens", "Tokens of the prompts of admitted requests.", stats.prompt_tokens),
        ("cached_tokens", "Those of them that the prefix cache had.", stats.cached_tokens),
        ("drawn_tokens", "Tokens drawn for requests.", stats.drawn_tokens),
        ("preemptions", "Requests that gave their pages to others.", stats.preemptions),
        ("late_compilations", "Programs compiled during a step.", stats.late_compiles),
        ("host_seconds", "CPU seconds of the engine's thread.", stats.host_s),
        ("step_seconds", "Seconds with a step on the device.", stats.step_s),
    ]
