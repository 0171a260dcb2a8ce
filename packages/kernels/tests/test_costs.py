# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Costs of operations with a single implementation, against those of XLA's program."""

import functools

import jax
import jax.numpy as jnp
import pytest

from dovetail_kernels import (
    ExpertGroups,
    Permutation,
    explain,
    glu,
    layer_norm,
    paged_write,
    permute,
    rms_norm,
    rope,
    route_tokens,
    sample,
    unpermute,
    warp_logits,
)


def _shape(*sizes, dtype="float32"):
    return jax.ShapeDtypeStruct(sizes, dtype)


_X = _shape(2048, 1024)
_NARROW = _shape(2048, 1024, dtype="bfloat16")
_HEADS = _shape(2, 1024, 8, 128)
_POSITIONS = _shape(1024, dtype="int32")
_ROWS = _shape(2048, 8, dtype="int32")
_CHOICES = _shape(2048, 4, dtype="int32")
_PLAN = Permutation(_shape(8192, dtype="int32"), _CHOICES, _shape(dtype="int32"))
_GROUPED = {"score": "sigmoid", "bias": _shape(256), "groups": ExpertGroups(count=8, k=4)}
_NEW = _shape(4096, 8, 64)
_LOGITS = _shape(32, 50257)

CASES = {
    "rope": (rope, (_HEADS, _POSITIONS), {"theta": 1e4}),
    "rope, bfloat16": (rope, (_HEADS.update(dtype=jnp.bfloat16), _POSITIONS), {"theta": 1e4}),
    "rope, interleaved": (rope, (_HEADS, _POSITIONS), {"theta": 1e4, "interleaved": True}),
    "rms_norm": (rms_norm, (_X, _shape(1024)), {"eps": 1e-6}),
    "rms_norm, residual": (rms_norm, (_X, _shape(1024)), {"eps": 1e-6, "residual": _X}),
    "rms_norm, bfloat16": (rms_norm, (_NARROW, _shape(1024)), {"eps": 1e-6}),
    "layer_norm": (layer_norm, (_X, _shape(1024), _shape(1024)), {"eps": 1e-6}),
    "glu": (glu, (_X, _X), {}),
    "glu, gelu_tanh": (glu, (_X, _X), {"activation": "gelu_tanh"}),
    "glu, gpt-oss": (glu, (_X, _X), {"alpha": 1.702, "limit": 7.0, "offset": 1.0}),
    "permute": (permute, (_shape(2048, 512), _ROWS), {"count": 128}),
    "unpermute": (unpermute, (_shape(8192, 512), _PLAN, _shape(2048, 4)), {}),
    "route_tokens": (route_tokens, (_shape(4096, 128),), {"k": 8}),
    "route_tokens, groups": (route_tokens, (_shape(4096, 256),), {"k": 8, **_GROUPED}),
    "paged_write": (
        paged_write,
        (_shape(500, 2, 16, 8, 64), _NEW, _NEW),
        {"slots": _shape(4096, dtype="int32")},
    ),
    "warp_logits": (warp_logits, (_shape(1, 50257),), {}),
}
# XLA counts conversions and selects too, and no steps of a sort.
FACTOR = 2
# One copy in three may share its memory.
PEAK_FACTOR = 1.5


def compiled(op, args, options):
    arrays = {name: value for name, value in options.items() if hasattr(value, "shape")}
    static = {name: value for name, value in options.items() if name not in arrays}
    donated = (0,) if op is paged_write else ()
    run = jax.jit(functools.partial(op, **static), donate_argnums=donated)
    return run.lower(*args, **arrays).compile()


@pytest.mark.parametrize("case", CASES)
def test_costs_are_those_of_the_compiled_program(case):
    op, args, options = CASES[case]
    work = explain(op, *args, **options).rows[0].work
    program = compiled(op, args, options)
    counted = program.cost_analysis().get("flops", 0)
    if op is not paged_write:  # which multiplies and adds nothing
        assert counted / FACTOR <= work.flops <= counted * FACTOR, counted
    measured = program.memory_analysis().temp_size_in_bytes
    if max(measured, work.peak_bytes) > 1e6:
        assert measured / PEAK_FACTOR <= work.peak_bytes <= measured * PEAK_FACTOR, measured


def test_bytes_are_arguments_and_results():
    def traffic(op, *args, **options):
        return explain(op, *args, **options).rows[0].work.bytes

    x = 4 * 2048 * 1024
    assert traffic(glu, _X, _X) == 3 * x
    assert traffic(rms_norm, _X, _shape(1024), eps=1e-6, residual=_X) == 4 * x + 4 * 1024
    slots = _shape(10, dtype="int32")
    new = _shape(10, 8, 64)
    # Donated pages are not copied: each new row is read and written.
    written = traffic(paged_write, _shape(500, 2, 16, 8, 64), new, new, slots=slots)
    assert written == 2 * 2 * 4 * 10 * 8 * 64 + 4 * 10


@pytest.mark.thorough
def test_a_search_for_a_threshold_costs_passes():
    keys = jax.random.split(jax.random.key(0), 32)

    def flops(**options):
        return explain(sample, _LOGITS, keys=keys, **options).rows[0].work.flops

    size = 32 * 50257
    assert flops(top_k=50) - flops() == 2 * 32 * size
    assert flops(top_p=0.9) - flops() == 3 * 32 * size
