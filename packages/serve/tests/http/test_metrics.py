# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The exposition, read by prometheus-client's own parser."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dovetail_serve.http import metrics

INFER = "/v2/models/mlp/versions/2/infer"


def scrape(served):
    response = served.ask("GET", "/metrics")
    assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        (sample.name.removeprefix("dovetail_serve_"), *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(response.body.decode())
        for sample in family.samples
    }


@pytest.mark.capability("metrics of Prometheus")
def test_metrics_are_the_counts_of_the_server(exported, serving, bodies):
    with serving(exported[0], versions="all") as served:
        for count in (1, 3, 5):
            served.ask("POST", INFER, bodies.json(bodies.rows(count)))
        served.ask("POST", "/v2/models/unknown-name/infer", bodies.json(bodies.rows(1)))
        timeout = {"timeout": 0, "priority": 99}
        served.ask("POST", INFER, bodies.json(bodies.rows(1), parameters=timeout))
        metrics = scrape(served)
        counts = served.server.statistics("mlp", "2")
        times = served.application._stages.times["mlp", "2"]
    assert metrics["requests_total", "2", "mlp", "ok"] == 3
    assert metrics["rows_total", "2", "mlp"] == 9
    assert metrics["rows_total", "1", "mlp"] == 0
    assert metrics["request_seconds_count", "2", "mlp"] == 3
    assert metrics["request_seconds_sum", "2", "mlp"] == pytest.approx(counts.total_s)
    assert metrics["batch_rows_sum", "2", "mlp"] == 9
    assert metrics["batch_rows_bucket", "1.0", "2", "mlp"] == 1
    assert metrics["batch_rows_bucket", "2", "4.0", "mlp"] == 2
    assert metrics["batch_rows_bucket", "2", "8.0", "mlp"] == 3
    assert metrics["batch_rows_bucket", "+Inf", "2", "mlp"] == 3
    assert metrics["queued_requests", "2", "mlp"] == 0
    assert metrics["loads_total", "2", "mlp", "ok"] == 1
    assert metrics["version_ready", "2", "mlp"] == 1
    assert metrics["http_responses_total", "200"] == 3
    assert metrics["http_responses_total", "404"] == 1
    stages = ("queue", "pad", "compute", "split")
    total = sum(metrics["stage_seconds_total", *sorted(("2", "mlp", stage))] for stage in stages)
    assert total == pytest.approx(counts.total_s)
    decode = metrics["stage_seconds_total", "2", "decode", "mlp"]
    assert decode == pytest.approx(times.decode_s)
    assert decode > 0
    # A client cannot make series of its own.
    assert not any("unknown-name" in key for key in metrics)
    failures = sum(counts.failures.values())
    assert failures == 1
    assert metrics["requests_total", *sorted(("2", "mlp", *counts.failures))] == 1


def test_bounds_of_batches_are_the_same_for_all_servers():
    few, many = (metrics._by_powers(batches) for batches in ({1: 3}, {1: 1, 5000: 2}))
    assert [bound for bound, _ in few[0]] == [bound for bound, _ in many[0]]
    assert (few[0][0], few[0][-2:], few[1]) == (("1.0", 3), [("4096.0", 3), ("+Inf", 3)], 3)
    assert (many[0][-2:], many[1]) == ([("4096.0", 1), ("+Inf", 3)], 10_001)


def test_a_version_that_was_never_loaded_is_not_ready_and_has_no_counts(exported, serving):
    """The repository has version 1 and the server takes the latest."""
    with serving(exported[0]) as served:
        metrics = scrape(served)
        assert metrics["version_ready", "1", "mlp"] == 0
        assert metrics["rows_total", "2", "mlp"] == 0
        assert [key for key in metrics if "1" in key] == [("version_ready", "1", "mlp")]
        versions = served.ask("GET", "/status").document["versions"]
        states = [(v["version"], v["state"], v["successes"]) for v in versions]
        assert states == [("1", "UNAVAILABLE", 0), ("2", "READY", 0)]
        (first, second) = served.ask("GET", "/v2/models/mlp/stats").document["model_stats"]
        assert (first["version"], second["version"]) == ("1", "2")
        assert first["inference_count"] == 0
