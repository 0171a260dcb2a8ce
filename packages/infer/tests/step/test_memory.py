# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Pages that fit: counted by hand, and refusals with their numbers."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_infer import reference
from dovetail_infer.schedule.plan import Limits
from dovetail_infer.step.buckets import Bucket
from dovetail_infer.step.executor import Executor
from dovetail_infer.step.layout import discover
from dovetail_infer.step.memory import fits
from dovetail_infer.testing import TinyDecoder

SIZES = {"page_size": 4, "step_tokens": 16, "max_rows": 3, "max_length": 64}
MODEL = TinyDecoder(vocab_size=51, embed=24, depth=3, windows=(None, 8, None), rngs=nnx.Rngs(0))
LAYOUT = discover(MODEL, max_length=64)
PAGE = 4 * 2 * 2 * 6 * 4  # bytes of a page of one layer: keys and values of 2 heads of 6 numbers
WHOLE = 64 // 4  # pages of a request without a window
BEHIND = 7  # with one of 8: 7 keys before a step of 16 tokens, and parts of a page at both ends


def test_pages_are_counted_by_hand():
    fit = fits(MODEL, layout=LAYOUT, **SIZES, free_bytes=2**30)
    assert fit.limits[0].window is None
    assert fit.limits[1].window == 8
    # Two layers without a window, with as many pages again for prefixes.
    assert fit.groups[0].page_bytes == 2 * PAGE
    assert fit.groups[0].pages == 2 * 3 * WHOLE
    assert fit.groups[1].page_bytes == PAGE
    assert fit.groups[1].pages == 3 * BEHIND
    assert fit.slots_bytes == 3 * 51 * 10
    assert fit.kv_bytes == (2**30 - fit.programs_bytes - fit.slots_bytes) // 4
    assert "3.0 requests of 64 tokens" in str(fit)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2 * 3 * (WHOLE * 2 + BEHIND) * PAGE))
def test_a_cache_holds_a_request_or_is_refused(kv_bytes):
    least = (WHOLE * 2 + BEHIND) * PAGE
    if kv_bytes < least:
        with pytest.raises(ValueError, match="must hold one request") as refused:
            fits(MODEL, layout=LAYOUT, **SIZES, kv_bytes=kv_bytes, free_bytes=2**30)
        message = str(refused.value)
        assert f"got kv_bytes={kv_bytes} " in message
        assert "Use a smaller max_length, fewer max_rows, step_tokens below 16, or " in message
        assert f"kv_bytes={least}." in message
        return
    fit = fits(MODEL, layout=LAYOUT, **SIZES, kv_bytes=kv_bytes, free_bytes=2**30)
    assert fit.used_bytes <= kv_bytes
    assert WHOLE <= fit.groups[0].pages <= 6 * WHOLE
    assert BEHIND <= fit.groups[1].pages <= 3 * BEHIND
    # No room is left for another page of each group, unless all have their most.
    full = fit.groups[0].pages == 6 * WHOLE and fit.groups[1].pages == 3 * BEHIND
    assert full or kv_bytes - fit.used_bytes < 2 * 2 * PAGE


def test_windows_have_at_most_half():
    kv_bytes = (WHOLE * 2 + BEHIND) * PAGE + 40 * PAGE
    fit = fits(MODEL, layout=LAYOUT, **SIZES, kv_bytes=kv_bytes, free_bytes=2**30)
    assert fit.groups[1].pages * PAGE <= kv_bytes // 2


def test_more_than_the_memory_is_refused():
    with pytest.raises(ValueError, match=r"fit in free memory, got kv_bytes=\d+ .*Use kv_bytes="):
        fits(MODEL, layout=LAYOUT, **SIZES, kv_bytes=10**6, free_bytes=120_000)


def test_free_memory_is_measured():
    fit = fits(MODEL, layout=LAYOUT, **SIZES)
    assert fit.free_bytes > 2**20
    assert fit.weights_bytes == sum(x.nbytes for x in jax.tree.leaves(nnx.state(MODEL)))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["plain", "score"])
def test_the_estimate_covers_a_compiled_program(kind):
    sizes = {**SIZES, "step_tokens": 128, "max_rows": 16}
    model = TinyDecoder(vocab_size=2003, embed=32, dtype=jnp.float32, rngs=nnx.Rngs(0))
    layout = discover(model, max_length=64)
    fit = fits(model, layout=layout, **sizes, free_bytes=2**30)
    limits = Limits(**sizes, groups=fit.limits)
    executor = Executor(model, operations=reference, layout=layout, limits=limits, max_logprobs=5)
    (program,) = executor.compile([Bucket(128, 16, kind)])
    assert 0 < program.bytes <= fit.programs_bytes
