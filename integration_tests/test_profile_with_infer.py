# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A trace of the engine, read: latencies of its stages, and its steps."""

import jax
import pytest

from dovetail_infer import Engine, Sampling
from dovetail_models import init, llama
from dovetail_profile import read

NEW = 5  # tokens of a completion: as many steps, of which the first reads the prompt


@pytest.mark.thorough("it compiles an engine")
@pytest.mark.capability("latencies of prefill and decode in a profile")
def test_stages_of_the_engine_have_latencies(tmp_path, uncached):
    config = llama(vocab_size=61, embed=32, depth=1, heads=4, kv_heads=2, mlp=48, max_length=32)
    engine = Engine(init(config, seed=0), page_size=4, max_length=32, max_rows=4, step_tokens=32)
    request = [[3, 14, 15, 9, 26]], Sampling(max_tokens=NEW)  # one: two may begin together, or not
    for _ in range(2):
        engine.generate(*request)  # compiles, the second time with a prefix that is cached
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(str(tmp_path), profiler_options=options):
        for _ in range(2):
            engine.generate(*request)
    profile = read(tmp_path)
    rows = {row.name: row for row in profile.annotations()}
    assert (rows["prefill"].calls, rows["decode"].calls) == (2, 2 * (NEW - 1))
    for row in (rows["prefill"], rows["decode"]):
        assert 0 < row.p50_us <= row.p99_us <= row.total_us
    assert len(profile.steps()) == 2 * NEW
    assert sum(profile.steps().column("compile_us")) == 0
    sampling = [row for row in profile.ops("scope") if row.name == "sampling"]
    assert [row.self_us > 0 for row in sampling] == [True]
