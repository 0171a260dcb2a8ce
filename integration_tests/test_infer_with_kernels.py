# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Draws of an engine with the operations of dovetail-kernels."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh

import dovetail_kernels
import dovetail_kernels.sampling.api
from dovetail_infer import Sampling, reference
from dovetail_infer.step import logits, slots
from dovetail_infer.testing import check_sampling
from dovetail_infer.testing.sampling import CASES

VOCAB = 1500


@pytest.mark.thorough
@pytest.mark.parameter("operations")
def test_draws_are_those_of_the_definition() -> None:
    check_sampling(dovetail_kernels)


def rows_of(samplings: list[Sampling], seeds: range) -> tuple[logits.Rows, logits.State]:
    size = len(samplings)
    options = slots.row_options(samplings, seeds=seeds, outputs=[2] * size)
    rows = logits.Rows(
        *map(jnp.asarray, options),
        positions=jnp.asarray(seeds, jnp.int32) + 100,
        slots=jnp.arange(size, dtype=jnp.int32),
        samples=jnp.ones(size, bool),
    )
    states = [
        slots.slot_state(s, prompt=[1, 2, 30], output=[2, 2], vocab_size=VOCAB, eos_ids=[5])
        for s in samplings
    ]
    return rows, logits.State(*(jnp.asarray(np.stack(x)) for x in zip(*states, strict=True)))


@functools.cache
def compiled(operations: object, kind: logits.Kind):
    return jax.jit(functools.partial(logits.draw, operations, kind=kind, top=3))


@pytest.mark.thorough
def test_a_seed_draws_the_same_token_alone_and_in_company() -> None:
    samplings = [*CASES.values(), Sampling(), Sampling(temperature=0)]
    z = jnp.asarray(np.random.default_rng(0).normal(size=(24, VOCAB)) * 3, jnp.float32)
    together = compiled(dovetail_kernels, "full")(z, *rows_of(samplings, range(24)))
    for i, sampling in enumerate(samplings):
        for kind in ("full",) if slots.needs_full(sampling) else ("full", "plain"):
            rows, state = rows_of([sampling], range(i, i + 1))
            alone = compiled(dovetail_kernels, kind)(z[i : i + 1], rows, state)
            assert alone.tokens[0] == together.tokens[i], (i, sampling, kind)
            # Sums of 1,500 terms in float32, in another order.
            for number, other in zip(alone[1:4], together[1:4], strict=True):
                np.testing.assert_allclose(number[0], other[i], rtol=1e-5, atol=1e-6)


@pytest.mark.thorough
def test_the_same_tokens_are_kept_as_by_the_reference() -> None:
    samplings = list(CASES.values())
    # Multiples of 1/4, so that many are equal.
    z = np.random.default_rng(1).normal(size=(len(samplings), VOCAB)) * 3
    z = jnp.asarray(np.round(4 * z) / 4, jnp.float32)
    ours, plain = (
        compiled(operations, "full")(z, *rows_of(samplings, range(len(samplings))))
        for operations in (dovetail_kernels, reference)
    )
    np.testing.assert_array_equal(ours.kept, plain.kept)
    # Sums of 1,500 terms in float32.
    np.testing.assert_allclose(ours.log_mass, plain.log_mass, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["plain", "full"])
@pytest.mark.parametrize("temperature", [0, 1])
def test_rows_without_a_distribution_have_no_token(temperature: int, kind: logits.Kind) -> None:
    z = np.random.default_rng(2).normal(size=(5, VOCAB)).astype("f4")
    z[1, 700], z[2, 1499], z[3] = np.nan, np.inf, -np.inf
    rows, state = rows_of([Sampling(temperature=temperature)] * 5, range(5))
    drawn = compiled(dovetail_kernels, kind)(jnp.asarray(z), rows, state)
    assert (np.asarray(drawn.tokens) >= 0).tolist() == [True, False, False, False, True]


H200 = AbstractDevice(device_kind="NVIDIA H200", num_cores=None, platform="cuda")
FORMS = {"loops": lambda f, z: f, "passes": lambda f, z: functools.partial(f, unrolled=True)}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["plain", "full"])
def test_the_programs_of_a_gpu_draw_the_same_bits(
    kind: logits.Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fixed number of passes and no conditional, against loops and a conditional."""
    rng = np.random.default_rng(3)
    able = [s for s in CASES.values() if kind == "full" or not slots.needs_full(s)]
    greedy = Sampling(temperature=0)
    mixes = [[greedy] * 6]
    for _ in range(8):
        picked = (able[i] for i in rng.integers(len(able), size=6))
        mixes.append([greedy if rng.random() < 0.3 else sampling for sampling in picked])
    programs = {}
    for form, suited in FORMS.items():
        step = functools.partial(
            logits.draw, dovetail_kernels, kind=kind, top=3, branches=form == "loops"
        )
        programs[form] = jax.jit(lambda *given, step=step: step(*given))
        monkeypatch.setattr(dovetail_kernels.sampling.api, "suited", suited)
        programs[form](jnp.zeros((6, VOCAB)), *rows_of(mixes[0], range(6)))  # traces it
    by_kind = jax.jit(functools.partial(logits.draw, dovetail_kernels, kind="greedy", top=3))
    for i, samplings in enumerate(mixes):
        z = rng.normal(size=(6, VOCAB)) * 3
        z = jnp.asarray(np.round(4 * z) / 4 if i % 2 else z, jnp.float32)
        rows, state = rows_of(samplings, range(10 * i, 10 * i + 6))
        rows = rows._replace(samples=jnp.asarray(rng.random(6) < 0.8))
        want, drawn = (programs[form](z, rows, state) for form in FORMS)
        jax.tree.map(np.testing.assert_array_equal, drawn, want)
        if i == 0 and kind == "plain":
            jax.tree.map(np.testing.assert_array_equal, by_kind(z, rows, None), want)


@pytest.mark.parametrize("kind", ["greedy", "plain", "full"])
def test_no_draw_on_a_gpu_waits_for_the_host(kind: logits.Kind) -> None:
    rows, state = jax.eval_shape(lambda: rows_of([Sampling()] * 4, range(4)))
    step = functools.partial(logits.draw, dovetail_kernels, kind=kind, top=3, branches=False)
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=H200)):
        traced = jax.jit(step).trace(jax.ShapeDtypeStruct((4, VOCAB), jnp.float32), rows, state)
        text = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert "stablehlo.exponential" in text
    assert not [name for name in ("while", "case", "if") if f"stablehlo.{name}" in text]
