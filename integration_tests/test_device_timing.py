# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Timing of chained operations beside their peers."""

import json
import sys
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import device_timing
import measure
from device_timing import Contest, chained

ROWS = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """The lines that a contest prints, as a step of the session would."""
    monkeypatch.setattr(sys, "argv", [str(measure.ROOT / "scripts" / "accelerator"), "toy.x"])

    def measured(**options: Any) -> list[dict[str, Any]]:
        given = {"case": "twice", "ours": lambda x: 2 * x, "chain": 3, **options}
        Contest(**given, inputs=lambda: (jnp.asarray(ROWS),)).measure()
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return measured


def test_a_chain_makes_every_call():
    seen = []

    def function(x):
        io_callback(lambda: seen.append(1), None)
        return {"a": x[::-1], "b": x.sum(), "none": x[:0]}

    # The first elements of the reversed rows and of the sum, five times.
    assert float(chained(function, 5)(jnp.asarray(ROWS))) == 5 * (3 + 15)
    assert len(seen) == 5


def test_a_line_has_the_peer_its_noise_and_the_rates(lines, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(device_timing, "peaks", lambda dtype: (1e30, 1e30))

    def refuses(x):
        raise NotImplementedError("not on this device")

    peers = {"absent": refuses, "sum": lambda x: x + x}
    absent, line = lines(peers=peers, flops=6.0, nbytes=48.0)
    assert (absent["peer"], absent["peer_value"]) == ("absent", None)
    assert absent["peer_error"] == "NotImplementedError: not on this device"
    assert (line["case"], line["peer"], line["chain"]) == ("twice, against sum", "sum", 3)
    assert line["ratio"] > 0
    assert line["noise"] > 0
    assert line["flops_per_s"] == pytest.approx(6 / line["value"], rel=1e-2)
    assert line["bytes_share_of_peak"] == pytest.approx(48 / line["value"] / 1e30, rel=1e-2)
    monkeypatch.setattr(device_timing, "peaks", lambda dtype: (1e-3, None))
    with pytest.raises(RuntimeError, match="left out a part of the chain"):
        lines(flops=6.0)


@pytest.mark.parametrize("other", [lambda x: 2.1 * x, lambda x: x * jnp.nan])
def test_another_result_is_no_measurement(lines, other):
    with pytest.raises(RuntimeError, match="differs from wrong by"):
        lines(peers={"wrong": other})


def test_a_bound_is_timed_whatever_its_result(lines):
    peer, bound = lines(peers={"sum": lambda x: x + x}, bounds={"a copy": lambda x: x + 1})
    assert (peer["peer"], bound["peer"]) == ("sum", "a copy")
    assert bound["peer_value"] > 0
