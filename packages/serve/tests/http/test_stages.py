# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Times of decoding and encoding close the gap around the server's own stages."""

import time

import pytest

from dovetail_serve.http import infer

INFER = "/v2/models/mlp/infer"


def test_explain_returns_the_time_of_each_stage(ask, bodies):
    response = ask("POST", INFER, bodies.json(bodies.rows(1), parameters={"explain": True}))
    stages = dict(entry.split(";dur=") for entry in response.headers["server-timing"].split(", "))
    assert list(stages) == ["decode", "queue", "pad", "compute", "split", "encode"]
    assert all(0 <= float(milliseconds) < 30_000 for milliseconds in stages.values())
    assert "server-timing" not in ask("POST", INFER, bodies.json(bodies.rows(1))).headers


def test_stages_sum_to_the_total(mlp, bodies, monkeypatch):
    """Decoding and encoding close the gap from the end of the body to the end of the response."""
    stages, before = mlp.application._stages, mlp.server.statistics("mlp", "2")
    was = stages.times.get(("mlp", "2"))
    http_before = (was.decode_s + was.encode_s) if was else 0.0
    clock, stamps = time.perf_counter, []

    class Clock:
        @staticmethod
        def perf_counter():
            stamps.append(clock())
            return stamps[-1]

    monkeypatch.setattr(infer, "time", Clock)
    assert mlp.ask_asgi("POST", INFER, bodies.json(bodies.rows(1))).status == 200
    after, now = mlp.server.statistics("mlp", "2"), stages.times["mlp", "2"]
    measured = now.decode_s + now.encode_s - http_before + after.total_s - before.total_s
    # Sums of doubles near 1 second.
    assert measured == pytest.approx(stamps[-1] - stamps[0], abs=1e-9)
