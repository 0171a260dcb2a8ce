# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Adjusted logits against float64 NumPy, token by token."""

import re

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_kernels.sampling.adjust import adjust_logits
from dovetail_kernels.sampling.api import sample

adjust = jax.jit(adjust_logits)


def oracle(logits, *, allowed=None, bias=None, prompt=None, counts=None, penalties=(1, 0, 0)):
    """Adjusts the logits by loops over tokens. `penalties` has one triple for each row, or one."""
    out = logits.astype(np.float64)
    rows = np.broadcast_to(np.asarray(penalties, np.float64), (len(out), 3))
    for b, (repetition, frequency, presence) in enumerate(rows):
        for i in range(out.shape[1]):
            z = out[b, i]
            if allowed is not None and not allowed[b, i]:
                z = -np.inf
            if bias is not None:
                z += bias[b, i]
            count = 0 if counts is None else counts[b, i]
            if count or (prompt is not None and prompt[b, i]):
                z = z / repetition if z > 0 else z * repetition
            out[b, i] = z - frequency * count - (presence if count else 0)
    return out


def packed(allowed):
    """Returns the bits as llguidance and xgrammar fill them: token i in bit i % 32 of i // 32."""
    batch, size = allowed.shape
    words = np.zeros((batch, -(-size // 32)), np.uint32)
    for i in range(size):
        words[:, i // 32] |= allowed[:, i].astype(np.uint32) << np.uint32(i % 32)
    return words


def inputs(rng, batch, size, dtype="float32"):
    logits = (rng.standard_normal((batch, size)) * 3).astype(jnp.dtype(dtype))
    prompt = rng.random((batch, size)) < 0.3
    counts = (rng.integers(0, 4, (batch, size)) * (rng.random((batch, size)) < 0.4)).astype("i4")
    allowed = rng.random((batch, size)) < 0.6
    bias = rng.standard_normal((batch, size)).astype("f4")
    penalties = np.stack(
        [rng.uniform(0.5, 2, batch), rng.uniform(-2, 2, batch), rng.uniform(-2, 2, batch)], 1
    ).astype("f4")
    return logits, prompt, counts, allowed, bias, penalties


NAMES = ("repetition_penalty", "frequency_penalty", "presence_penalty")


def close(found, expected):
    """Within 6 roundings of float32, of numbers up to 30 and their intermediate ones."""
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=6 * 2**-24 * 30)


@pytest.mark.thorough
@pytest.mark.capability("bias, allow-masks and penalties of logits")
@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    seed=st.integers(0, 2**31),
    size=st.sampled_from([1, 31, 32, 65]),
    dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
    mask=st.sampled_from([None, "bool", "uint32", "int32"]),
    biased=st.booleans(),
    on=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_every_combination(seed, size, dtype, mask, biased, on):
    rng = np.random.default_rng(seed)
    logits, prompt, counts, allowed, bias, penalties = inputs(rng, 3, size, dtype)
    options, used = {}, penalties.copy()
    if mask is not None:
        options["allowed"] = allowed if mask == "bool" else packed(allowed).view(mask)
    if biased:
        options["bias"] = bias
    for i, name in enumerate(NAMES):
        if on[i]:
            options[name] = penalties[:, i]
        else:
            used[:, i] = 1 if i == 0 else 0
    if any(on):
        options["output_counts"] = counts
    if on[0]:
        options["prompt_mask"] = prompt
    expected = oracle(
        logits,
        allowed=allowed if mask else None,
        bias=bias if biased else None,
        prompt=prompt,
        counts=counts,
        penalties=used,
    )
    close(adjust(logits, **options), expected)


@pytest.mark.thorough
def test_bits_of_a_vocabulary_of_a_model():
    """The last word is in part beyond V, and its further bits are set."""
    rng = np.random.default_rng(0)
    allowed = rng.random((2, 50_257)) < 0.5
    words = packed(allowed)
    words[:, -1] |= np.uint32(0xFFFE0000)  # 50,257 = 1,570 * 32 + 17
    found = adjust_logits(np.zeros((2, 50_257), "f4"), allowed=words.view("i4"))
    np.testing.assert_array_equal(np.asarray(found) == 0, allowed)


def test_a_sparse_bias_is_that_of_its_ids():
    rng = np.random.default_rng(1)
    logits = rng.standard_normal((3, 11)).astype("f4")
    ids = np.array([[0, 10, -1, 4], [5, 5, 2, -1], [-1, -1, -1, -1]])
    values = rng.standard_normal((3, 4)).astype("f4")
    dense = np.zeros((3, 11))
    for b, k in np.argwhere(ids >= 0):
        dense[b, ids[b, k]] += values[b, k]
    for kind in ("int32", "int64"):
        close(adjust_logits(logits, bias=(ids.astype(kind), values)), oracle(logits, bias=dense))


@pytest.mark.thorough
def test_penalties_read_prompt_and_output():
    """Frequency and presence read the output alone; repetition reads either or both."""
    z = np.array([[2.0, -2.0, 4.0, -4.0, 0.0]], "f4")
    prompt = np.array([[1, 0, 0, 2, 1]])
    counts = np.array([[0, 3, 1, 0, 0]], "i4")
    both = adjust_logits(z, prompt_mask=prompt, output_counts=counts, repetition_penalty=2.0)
    assert both.tolist() == [[1.0, -4.0, 2.0, -8.0, 0.0]]
    alone = adjust_logits(z, prompt_mask=prompt, repetition_penalty=2.0)
    assert alone.tolist() == [[1.0, -2.0, 4.0, -8.0, 0.0]]
    alone = adjust_logits(z, output_counts=counts, repetition_penalty=2.0)
    assert alone.tolist() == [[2.0, -4.0, 2.0, -4.0, 0.0]]
    counted = adjust_logits(z, output_counts=counts, frequency_penalty=0.5)
    assert counted.tolist() == [[2.0, -3.5, 3.5, -4.0, 0.0]]
    present = adjust_logits(z, output_counts=counts, presence_penalty=0.5)
    assert present.tolist() == [[2.0, -2.5, 3.5, -4.0, 0.0]]


def test_the_order_is_that_of_vllm():
    """A bias changes the sign before the repetition penalty reads it; -inf stays."""
    z, counts = np.array([[-1.0, 1.0, 5.0]], "f4"), np.array([[2, 1, 1]], "i4")
    found = adjust_logits(
        z,
        allowed=np.array([[True, True, False]]),
        bias=np.array([[3.0, -3.0, 9.0]], "f4"),
        output_counts=counts,
        repetition_penalty=2.0,
        frequency_penalty=0.25,
        presence_penalty=0.5,
    )
    assert found.tolist() == [[2 / 2 - 0.5 - 0.5, -2 * 2 - 0.25 - 0.5, -np.inf]]


@pytest.mark.thorough
def test_what_is_not_allowed_is_never_drawn():
    z = np.array([[np.nan, 1.0, np.inf, 0.0], [0.0, 1.0, 2.0, 3.0]], "f4")
    allowed = np.array([[False, True, False, True], [False] * 4])
    adjusted = adjust_logits(z, allowed=allowed)
    assert adjusted.tolist() == [[-np.inf, 1.0, -np.inf, 0.0], [-np.inf] * 4]
    tokens = sample(adjusted, keys=jax.random.split(jax.random.key(0), 2), temperature=0.0)
    assert tokens.tolist() == [1, -1]


@pytest.mark.thorough
def test_traced_values_out_of_range_give_no_token():
    z, counts = np.zeros((2, 3), "f4"), np.ones((2, 3), "i4")
    for name, wrong in zip(NAMES, (0.0, np.nan, np.inf), strict=True):
        rows = adjust(z, output_counts=counts, **{name: np.array([wrong, 1.5], "f4")})
        np.testing.assert_array_equal(np.isnan(rows), [[True] * 3, [False] * 3])
    ids, values = np.array([[3], [2]], "i4"), np.ones((2, 1), "f4")
    np.testing.assert_array_equal(adjust(z, bias=(ids, values)), [[np.nan] * 3, [0, 0, 1]])
    assert sample(
        adjust(z, bias=(-ids, values)), keys=jax.random.split(jax.random.key(0), 2)
    ).tolist() == [-1, -1]


@pytest.mark.thorough
def test_gradients_reach_logits_and_bias():
    z, bias = jnp.array([[2.0, -2.0, 1.0]]), jnp.array([[0.5, -0.5, 0.0]])
    counts, allowed = jnp.array([[1, 1, 0]]), jnp.array([[True, True, False]])

    def loss(z, bias):
        adjusted = adjust_logits(
            z, allowed=allowed, bias=bias, output_counts=counts, repetition_penalty=2.0
        )
        return jnp.sum(adjusted[:, :2])

    for gradient in jax.grad(loss, argnums=(0, 1))(z, bias):
        assert gradient.tolist() == [[0.5, 2.0, 0.0]]


@pytest.mark.thorough
def test_vmap_and_x64():
    rng = np.random.default_rng(3)
    logits, _, counts, allowed, _, _ = inputs(rng, 6, 40)
    call = jax.jit(
        lambda z, words, counts: adjust_logits(
            z, allowed=words, output_counts=counts, presence_penalty=0.5
        )
    )
    arrays = logits, packed(allowed), counts
    whole = call(*arrays)
    many = jax.vmap(call)(*(a.reshape(2, 3, -1) for a in arrays))
    np.testing.assert_array_equal(many.reshape(6, 40), whole)
    with jax.enable_x64(True):
        found = adjust_logits(
            logits, allowed=packed(allowed), output_counts=counts.astype("i8"), presence_penalty=0.5
        )
        assert found.dtype == jnp.float32
        np.testing.assert_array_equal(found, whole)


Z, N, F = jnp.zeros((2, 40)), jnp.zeros((2, 40), jnp.int32), jnp.zeros((2, 3))
WRONG = [
    ({"allowed": jnp.zeros((2, 3), jnp.int32)}, "allowed must be bool [B, V] = [2, 40] or bits "
     "int32 or uint32 [B, ceil(V / 32)] = [2, 2], got int32 [2, 3]", "Use allowed[:, :2]"),
    ({"allowed": jnp.zeros((2, 2), bool)}, "got bool [2, 2]", "Use allowed"),
    ({"allowed": N.astype(jnp.int8)}, "got int8 [2, 40]", "Use allowed"),
    ({"bias": F}, "bias must be [B, V] = [2, 40] or (ids [B, K], values [B, K]), got "
     "bias.shape=(2, 3)", "Use jnp.broadcast_to"),
    ({"bias": (N[:, :2], F)}, "with B = 2, got ids [2, 2] and values [2, 3]", "with id -1"),
    ({"bias": (N[:1, :3], F[:1])}, "with B = 2, got ids [1, 3] and", "Fill shorter rows"),
    ({"bias": (N[:, :3] + 40, F)}, "ids of bias must be in [0, V) = [0, 40) or -1, got 40",
     "Use -1 for none"),
    ({"bias": (N[:, :3] - 2, F)}, "or -1, got -2", "Use -1 for none"),
    ({"output_counts": N[:1], "presence_penalty": 1.0}, "output_counts must be [B, V] = [2, 40], "
     "got output_counts.shape=(1, 40)", "Use one row"),
    ({"frequency_penalty": 1.0}, "frequency_penalty needs the tokens of the output, got "
     "output_counts=None", "Use output_counts=jnp.zeros"),
    ({"presence_penalty": 1.0, "prompt_mask": N}, "presence_penalty needs the tokens of the "
     "output", "Use output_counts"),
    ({"repetition_penalty": 1.1}, "repetition_penalty needs the tokens of prompt or output, got "
     "prompt_mask=None and output_counts=None", "Use prompt_mask=jnp.zeros"),
    ({"output_counts": N}, "output_counts has an effect by a penalty alone, got output_counts and "
     "no penalty that reads it", "Leave out output_counts"),
    ({"output_counts": N, "prompt_mask": N, "presence_penalty": 0.0}, "prompt_mask has an effect",
     "Leave out prompt_mask"),
    ({"output_counts": N, "repetition_penalty": 0.0}, "repetition_penalty must be finite and > 0, "
     "got repetition_penalty=0.0", "Use 1.0 for no penalty"),
    ({"output_counts": N, "frequency_penalty": np.nan}, "frequency_penalty must be finite, got "
     "frequency_penalty=nan", "Use 0.0 for no penalty"),
    ({"output_counts": N, "presence_penalty": np.zeros(3)}, "presence_penalty must be a number or "
     "[B] = [2], got presence_penalty.shape=(3,)", "Use one value for each row"),
]  # fmt: skip
WRONG_DTYPE = [
    ({"bias": N}, "bias must be floating, got int32", "Use .astype(jnp.float32)"),
    ({"bias": (F, F)}, "ids of bias must be int32 or int64, got float32", "Use .astype(jnp.int32)"),
    ({"bias": [1.0]}, "adjust_logits needs bias as an array, got bias of type list", "Use jnp."),
    ({"allowed": [[True]]}, "needs allowed as an array, got allowed of type list", "Use jnp."),
    ({"output_counts": Z, "presence_penalty": 1.0}, "output_counts must be integers, got float32",
     "Use .astype(jnp.int32)"),
    ({"prompt_mask": Z, "repetition_penalty": 1.0}, "prompt_mask must be bool or integers, got "
     "float32", "Use .astype(jnp.int32)"),
    ({"output_counts": N, "presence_penalty": "1"}, "presence_penalty must be a number or [B], got "
     "presence_penalty='1'", "Use 0.0"),
]  # fmt: skip


@pytest.mark.parametrize("kind, table", [(ValueError, WRONG), (TypeError, WRONG_DTYPE)])
def test_a_wrong_call_is_refused(kind, table, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    for options, what, instead in table:
        with pytest.raises(kind, match=re.escape(what)) as error:
            adjust_logits(Z, **options)
        assert instead in str(error.value), what
