# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Lists are refused by name in every operation; arrays of any kind pass."""

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from dovetail_kernels import (
    attention,
    glu,
    grouped_matmul,
    layer_norm,
    linear_cross_entropy,
    linear_logprobs,
    paged_attention,
    paged_write,
    permute,
    rms_norm,
    rope,
    route_tokens,
    sample,
    unpermute,
    warp_logits,
)
from dovetail_kernels.arrays import check_arrays, converts_whole, is_known, known

X, Q = np.ones((2, 3), np.float32), np.ones((1, 2, 1, 4), np.float32)
PAGES, IDS = np.ones((2, 2, 2, 1, 4), np.float32), np.arange(2, dtype=np.int32)
LIST = [0, 1]
TABLE = {
    "attention v": lambda: attention(Q, Q, LIST),
    "linear_cross_entropy labels": lambda: linear_cross_entropy(X, X.T, LIST),
    "linear_logprobs where": lambda: linear_logprobs(X, X.T, IDS, where=LIST),
    "route_tokens logits": lambda: route_tokens(LIST, k=1),
    "permute experts": lambda: permute(X, LIST, count=2),
    "unpermute weights": lambda: unpermute(X, permute(X, IDS[:, None], count=2)[2], LIST),
    "grouped_matmul sizes": lambda: grouped_matmul(X, X[None], LIST),
    "sample logits": lambda: sample(LIST, keys=jax.random.split(jax.random.key(0), 2)),
    "warp_logits logits": lambda: warp_logits(LIST),
    "rms_norm scale": lambda: rms_norm(X, LIST, eps=1e-6),
    "layer_norm bias": lambda: layer_norm(X, None, LIST, eps=1e-6),
    "rope positions": lambda: rope(Q, LIST, theta=10.0),
    "glu up": lambda: glu(X, LIST),
    "paged_attention q_starts": lambda: paged_attention(
        Q[0], PAGES, page_table=IDS[None], kv_lengths=IDS[1:], q_starts=LIST
    ),
    "paged_write slots": lambda: paged_write(PAGES, Q[0], Q[0], slots=LIST),
}


@pytest.mark.parametrize("call", TABLE)
def test_a_list_is_refused_by_name(monkeypatch, call):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    operation, name = call.split()
    message = f"{operation} needs {name} as an array, got {name} of type list. Use jnp.asarray"
    with pytest.raises(TypeError, match=message):
        TABLE[call]()


def test_keys_and_counts_of_another_kind_say_what_to_use(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(TypeError, match=r"typed keys, got keys=0. Use jax.random.key"):
        sample(X, keys=0)
    with pytest.raises(TypeError, match=r"a Python int as k, got k=1.5. Use k=2"):
        route_tokens(X, k=1.5)


def test_arrays_structs_and_tracers_pass():
    check_arrays("op", a=X, b=jnp.ones(2), c=None, d=jax.ShapeDtypeStruct((3,), jnp.float32))
    jax.make_jaxpr(lambda x: check_arrays("op", x=x) or x)(X)


def test_values_are_known_unless_they_are_traced_or_abstract():
    np.testing.assert_array_equal(known(jnp.arange(3)), [0, 1, 2])
    assert known(X) is X
    assert known(jax.ShapeDtypeStruct((3,), jnp.float32)) is None
    assert known(None) is None
    captured, seen = jnp.arange(3), []

    def function(x):
        seen.extend([is_known(x), known(captured)])
        return x

    jax.make_jaxpr(function)(X)
    assert seen[0] is False
    np.testing.assert_array_equal(seen[1], [0, 1, 2])


@pytest.mark.parametrize("dtype, platform", [("float32", "cpu"), ("bfloat16", "gpu")])
def test_only_16_bits_on_a_cpu_are_converted(dtype, platform):
    assert not converts_whole(dtype, platform)
    assert converts_whole("bfloat16", "cpu") == (jax.__version_info__ < (0, 12))
