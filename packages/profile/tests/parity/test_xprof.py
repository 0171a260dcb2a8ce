# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""XProf's memory viewer and graph viewer on the same bytes."""

import json
import re
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from dovetail_profile.tables.graph import graph
from dovetail_profile.tables.memory import memory
from dovetail_profile.trace.recording import Recording
from dovetail_profile.trace.space import parse

raw_to_tool_data = pytest.importorskip("xprof.convert.raw_to_tool_data")

pytestmark = pytest.mark.parity

FIXTURES = Path(__file__).parents[1] / "fixtures"
SMALL = 16384  # bytes; XProf gives the sum of the buffers below


def _larger(folder):
    """Traces a training step of eight layers, a few MB in hundreds of buffers."""

    def loss(params, x):
        for w in params:
            x = jax.checkpoint(lambda x, w: jnp.tanh(x @ w))(x, w) + x
        return (x**2).mean()

    @jax.jit
    def step(params, x):
        grads = jax.grad(loss)(params, x)
        return [p - 0.1 * g for p, g in zip(params, grads, strict=True)]

    params, x = [jnp.ones((256, 256))] * 8, jnp.ones((64, 256))
    with jax.profiler.trace(str(folder)):
        jax.block_until_ready(step(params, x))
    (file,) = folder.glob("plugins/profile/*/*.xplane.pb")
    return file


@pytest.fixture(params=["jax-0.10.2", "jax-0.12.0.1", "collectives", "larger"])
def trace(request, tmp_path, uncached):
    """A trace, its recording, and in its folder the programs as XProf takes them out.

    Programs from a cache have no trace of the heap, and XProf leaves out their temporaries.
    """
    if request.param == "larger":
        file = _larger(tmp_path)
    else:
        file = tmp_path / "host.xplane.pb"
        shutil.copy(FIXTURES / f"{request.param}.xplane.pb", file)
    raw_to_tool_data.xspace_to_tool_names([str(file)])
    return file, Recording([parse(file.read_bytes())], ["host"])


def _ask(file, tool, module, number, **options):
    name = f"{module.name}({number})"
    options = {"module_name": name, "graph_viewer_options": {"module_name": name, **options}}
    return raw_to_tool_data.xspace_to_tool_data([str(file)], tool, options)[0]


def test_memory_is_that_of_the_memory_viewer(trace):
    file, recording = trace
    peaks = []
    for (_, number), module in recording.modules.items():
        theirs = json.loads(_ask(file, "memory_viewer", module, number))
        ours = memory(module)
        peak = theirs.get("peakHeapMib", 0) * 2**20
        assert ours.peak_bytes == pytest.approx(peak, rel=0.01)
        peaks.append(peak)
        heap = theirs.get("maxHeap", [])
        large = {
            (x["instructionName"], x["logicalBufferSizeMib"] * 2**20, x["groupName"].lower())
            for x in heap
            if "instructionName" in x
        }
        rows = {(x.buffer, float(x.bytes), x.kind) for x in ours.at_peak if x.bytes >= SMALL}
        assert rows == large
        small = sum(x["logicalBufferSizeMib"] for x in heap if "instructionName" not in x)
        assert sum(x.bytes for x in ours.at_peak if x.bytes < SMALL) == small * 2**20
        if sizes := theirs.get("heapSizes"):
            live = [mib * 2**20 for mib in sizes]
            assert ours.over_time.column("live_bytes") == pytest.approx(live)
    assert max(peaks) > 10_000


def test_nodes_are_those_of_the_graph_viewer(trace):
    file, recording = trace
    for (_, number), module in recording.modules.items():
        text = _ask(file, "graph_viewer", module, number, type="short_txt")
        text = text.decode() if isinstance(text, bytes) else text
        names = re.findall(r"^\s+(?:ROOT )?%?([^\s=]+) = ", text, re.MULTILINE)
        assert sorted(graph(module, fused=True).nodes.column("name")) == sorted(names)
