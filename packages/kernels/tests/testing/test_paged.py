# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The suite itself: its expected values, and that it finds what is wrong."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_kernels.paged.pages import QuantizedPages, codes_of
from dovetail_kernels.testing.paged import (
    Case,
    cases,
    check,
    check_paged_attention,
    check_paged_write,
    expected,
    inputs,
)

NAMED = {case.name: case for case in cases()}
FEATURES = frozenset(feature for case in cases() for feature in case.needs)


def oracle(*, wrong=None, refused=frozenset()):
    """A function with the answers of the suite's own formula, or those of a changed case."""

    def call(q, pages, *, page_table, kv_lengths, q_starts, sinks=None, **options):
        case = Case(
            name="called",
            needs=frozenset(),
            queries=tuple(np.diff(q_starts).tolist()),
            lengths=tuple(np.asarray(kv_lengths).tolist()),
            heads=q.shape[1],
            kv_heads=codes_of(pages).shape[3],
            width=q.shape[2],
            page_size=codes_of(pages).shape[2],
            pages_dtype=codes_of(pages).dtype.name,
            **options,
        )
        scales = None
        if isinstance(pages, QuantizedPages):
            pages, scales = pages.codes, np.asarray(pages.scales)
        if refused.intersection(options) or (sinks is not None and "sinks" in refused):
            raise NotImplementedError("not this")
        given = inputs(case)._replace(
            q=np.asarray(q),
            pages=np.asarray(pages),
            page_table=np.asarray(page_table),
            q_starts=np.asarray(q_starts),
            sinks=None if sinks is None else np.asarray(sinks),
            scales=scales,
        )
        case, given = (wrong or (lambda case, given: (case, given)))(case, given)
        width = case.value_width or case.width
        found = expected(case, given, np.zeros((*q.shape[:2], width)))
        out = jnp.asarray(found.out, q.dtype)
        return (out, jnp.asarray(found.lse, jnp.float32)) if case.lse else out

    return call


def without(**options):
    return lambda case, given: (dataclasses.replace(case, **options), given)


def scaled(case, given):
    return case, given if given.scales is None else given._replace(scales=given.scales * 1.01)


@pytest.mark.thorough
def test_what_is_right_or_refused_passes():
    check_paged_attention(oracle(), supports=FEATURES - {"gradient"})
    check_paged_attention(oracle(refused={"sinks", "window"}), supports={"prefill", "idle"})


@pytest.mark.parametrize(
    "name, wrong",
    [
        ("window", without(window=None)),
        ("window", without(window=6)),
        ("soft cap", without(soft_cap=None)),
        ("scale", without(scale=None)),
        ("sinks", lambda case, given: (case, given._replace(sinks=None))),
        ("chunk", lambda case, given: (case, given._replace(q=given.q[::-1]))),
        ("decode", lambda case, given: (dataclasses.replace(case, lengths=(1, 129, 5)), given)),
        ("int8", scaled),
        ("latent", lambda case, given: (case, given._replace(pages=given.pages[..., ::-1]))),
        ("bfloat16", lambda case, given: (case, given._replace(q=given.q * np.float32(1.5)))),
    ],
)
def test_what_is_ignored_is_found(name, wrong):
    with pytest.raises(AssertionError, match=rf"{name}: output is off by .*, bound"):
        check(oracle(wrong=wrong), NAMED[name], grad=False)
    with pytest.raises(AssertionError, match="output is off by"):
        check_paged_attention(oracle(wrong=wrong), supports=())


def test_a_wrong_lse_is_found():
    def shifted(*args, **options):
        result = oracle()(*args, **options)
        return (result[0], result[1] + 1e-3) if options.get("lse") else result

    def padded(*args, **options):
        result = oracle()(*args, **options)
        return (result[0], jnp.nan_to_num(result[1])) if options.get("lse") else result

    with pytest.raises(AssertionError, match=r"lse: lse is off by 0.001, bound"):
        check(shifted, NAMED["lse"], grad=False)
    with pytest.raises(AssertionError, match=r"lse: lse must be -inf for rows without a request"):
        check(padded, NAMED["lse"], grad=False)


def test_other_faults_are_found():
    def half(q, pages, **more):
        return oracle()(q, pages, **more).astype(jnp.float16)

    with pytest.raises(AssertionError, match=r"decode: the output must be float32 .* got float16"):
        check_paged_attention(half, supports=())
    with pytest.raises(AssertionError, match=r"window: needs .* refused: NotImplementedError"):
        check_paged_attention(oracle(refused={"window"}), supports=FEATURES)
    with pytest.raises(ValueError, match=r"supports must be among .* got \['x'\]. Omit"):
        check_paged_attention(oracle(), supports={"x"})


def test_a_wrong_gradient_is_found():
    """Of a function whose value is right, and does not depend on q in JAX's eyes."""
    case = NAMED["gradient"]
    answer = expected(case, inputs(case), np.zeros(inputs(case).q.shape)).out

    def constant(q, pages, **numbers):
        return jnp.asarray(answer, q.dtype)

    check(constant, case, grad=False)
    with pytest.raises(AssertionError, match="gradient: gradient of pages is off by"):
        check(constant, case)


@pytest.mark.parametrize("name", ["all options", "mixed"])
def test_gradients_of_the_oracle_by_differences(name):
    case = dataclasses.replace(NAMED[name], lengths=(7, 11, 5, 9, 140))
    given = inputs(case)
    rng = np.random.default_rng(3)
    cotangent = np.nan_to_num(given.q * 0) + rng.standard_normal(given.q.shape)
    found = expected(case, given, cotangent)
    for field in ("q", "pages", "sinks"):
        if (array := getattr(given, field)) is None:
            continue
        step = 1e-5 * rng.standard_normal(array.shape)
        ends = [
            expected(case, given._replace(**{field: array.astype(float) + side * step}), cotangent)
            for side in (1, -1)
        ]
        difference = np.vdot(ends[0].out - ends[1].out, cotangent) / 2
        slope = np.vdot(getattr(found, field), np.nan_to_num(step))
        # The third derivative times 1e-10, and float64 rounding over 1e-5.
        np.testing.assert_allclose(difference, slope, rtol=1e-6, atol=1e-10)


def written(pages, k, v, *, slots):
    by_place = np.array(pages).swapaxes(1, 2)
    flat = by_place.reshape(-1, *by_place.shape[2:])
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            flat[slot] = np.stack([k[row], v[row]])
    return jnp.asarray(flat.reshape(by_place.shape).swapaxes(1, 2))


def test_check_of_writing():
    check_paged_write(written)
    with pytest.raises(AssertionError, match="is not as written"):
        check_paged_write(lambda pages, k, v, *, slots: written(pages, v, k, slots=slots))
    with pytest.raises(AssertionError, match="is not as written"):
        check_paged_write(
            lambda pages, k, v, *, slots: written(pages, k, v, slots=jnp.maximum(slots, 0))
        )
    with pytest.raises(AssertionError, match="is not as written"):
        check_paged_write(
            lambda pages, *rows, slots: jnp.nan_to_num(written(pages, *rows, slots=slots))
        )
    with pytest.raises(AssertionError, match="came back as float16"):
        check_paged_write(lambda pages, k, v, *, slots: pages.astype(jnp.float16))
