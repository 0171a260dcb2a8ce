# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Figures of the status page."""

import pytest


def test_figures_are_the_counts_of_the_server(ask, mlp, bodies):
    ask("POST", "/v2/models/mlp/infer", bodies.json(bodies.rows(2)))
    document = ask("GET", "/status").document
    assert (document["live"], document["ready"], document["draining"]) == (True, True, False)
    assert document["responses"]["200"] >= 1
    (version,) = [v for v in document["versions"] if v["version"] == "2"]
    counts = mlp.server.statistics("mlp", "2")
    assert version["state"] == "READY"
    assert version["digest"] == mlp.server.metadata("mlp", "2").digest
    assert version["successes"] == counts.successes == version["http_requests"]
    assert version["rows"] == counts.rows
    assert sum(version["batches"].values()) == sum(counts.batches.values())
    stages = version["stages_s"]
    inner = sum(stages[stage] for stage in ("queue", "pad", "compute", "split"))
    assert inner == pytest.approx(counts.total_s)
    assert list(stages) == ["decode", "queue", "pad", "compute", "split", "encode"]
