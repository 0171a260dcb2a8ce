# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Arguments made for a recorded call: they make the same call again, and files of calls."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_kernels import (
    QuantizedPages,
    attention,
    grouped_matmul,
    linear_cross_entropy,
    linear_logprobs,
    pack_weights,
    quantized_matmul,
    record_calls,
)
from dovetail_kernels.dispatch import Device
from dovetail_kernels.measured import DamagedFile, RecordedCall, facts
from dovetail_kernels.paged.api import plan_paged_attention
from dovetail_kernels.paged.call import PagedCall
from dovetail_kernels.sweep.examples import example, read_calls


def shape(*sizes, dtype="float32"):
    return jax.ShapeDtypeStruct(sizes, dtype)


Q, K = shape(2, 24, 4, 8), shape(2, 24, 2, 8)
IDS = shape(2, 24, dtype="int32")
PACKED = {
    bits: pack_weights(jnp.ones((64, 6)), bits=bits, group_size=32, symmetric=bits == 8)
    for bits in (4, 8)
}
CASES = {
    "causal": (attention, (Q, K, K), {"causal": True, "window": 5, "soft_cap": 3.0}),
    "arrays": (
        attention,
        (Q, K, shape(2, 24, 2, 3)),
        {
            "segment_ids": IDS,
            "positions": IDS,
            "kv_lengths": shape(2, dtype="int32"),
            "mask": shape(1, 1, 24, 24, dtype="bool"),
            "bias": shape(1, 4, 1, 24),
            "sinks": shape(4),
            "stats": True,
        },
    ),
    "pairs": (
        attention,
        (Q, shape(2, 30, 2, 8, dtype="float32"), shape(2, 30, 2, 8)),
        {"causal": True, "positions": (IDS, shape(2, 30, dtype="int32"))},
    ),
    "loss": (
        linear_cross_entropy,
        (shape(9, 5), shape(31, 5), shape(9, dtype="int32")),
        {"vocab_axis": 0, "z_loss": 1e-4, "smoothing": 0.1, "bias": shape(31)},
    ),
    "logprobs": (
        linear_logprobs,
        (shape(9, 5, dtype="bfloat16"), shape(5, 31, dtype="bfloat16"), shape(9, dtype="int32")),
        {"temperature": 0.5, "budget": 1 << 20},
    ),
    "grouped": (grouped_matmul, (shape(10, 5), shape(3, 5, 7), shape(3, dtype="int32")), {}),
    "quantized": (quantized_matmul, (shape(3, 64), PACKED[4]), {}),
    "rounded": (quantized_matmul, (shape(3, 64), PACKED[8]), {"activations": "int8"}),
}


def traced(op, args, options):
    """Records a call; options that are shapes are arrays."""
    leaves, tree = jax.tree.flatten((args, options))
    arrays = {i: leaf for i, leaf in enumerate(leaves) if hasattr(leaf, "shape")}

    def call(arrays):
        args, options = jax.tree.unflatten(tree, [arrays.get(i, x) for i, x in enumerate(leaves)])
        return jax.tree.leaves(op(*args, **options))

    with record_calls() as calls:
        jax.eval_shape(call, arrays)
    return calls


@pytest.mark.parametrize("name", CASES)
def test_an_example_makes_the_same_call(name, tmp_path):
    op, args, options = CASES[name]
    [recorded] = traced(op, args, options)
    made = example(recorded)
    with record_calls(tmp_path / "calls.json") as again:
        function = functools.partial(made.operation, **made.options)
        jax.eval_shape(lambda arrays: jax.tree.leaves(function(**arrays)), made.arrays)
    assert again == [recorded]
    assert read_calls(tmp_path / "calls.json") == [recorded]
    assert made.operation is op
    for differentiable in made.differentiable:
        assert np.std(np.asarray(made.arrays[differentiable], np.float32)) > 0.5


GPU = Device(platform="gpu", kind="NVIDIA H200")
PAGED = PagedCall(
    queries=5,
    heads=4,
    kv_heads=2,
    width=8,
    pages=7,
    page_size=4,
    requests=3,
    columns=2,
    dtype="float32",
    pages_dtype="float32",
    window=None,
    soft_cap=None,
    sinks=True,
    scale=0.5,
    value_width=None,
    lse=True,
    invariant=False,
    single=False,
    device=GPU,
)


@pytest.mark.thorough
@pytest.mark.parametrize("pages", ["float32", "int8"])
def test_an_example_of_pages_is_a_batch_of_equal_requests(pages):
    # On a CPU no call of pages is recorded, so this one is from its facts.
    call = {**vars(PAGED), "pages_dtype": pages}
    made = example(RecordedCall(operation="paged_attention", call=PagedCall(**call)))
    assert isinstance(made.arrays["pages"], QuantizedPages) == (pages == "int8")
    assert made.arrays["q_starts"].tolist() == [0, 1, 3, 5]
    assert made.arrays["kv_lengths"].tolist() == [8, 8, 8]
    out, lse = made.operation(**made.arrays, **made.options)  # checks the numbers
    assert out.shape == (5, 4, 8)
    assert bool(jnp.isfinite(out).all() & jnp.isfinite(lse).all())


@pytest.mark.parametrize("single", [False, True])
def test_an_example_of_pages_knows_as_much_as_the_call(single):
    """Of one row a request: `q_starts` is known while JAX traces, or not."""
    call = PagedCall(**{**vars(PAGED), "queries": 3, "single": single})
    made = example(RecordedCall(operation="paged_attention", call=call))
    given = jax.eval_shape(lambda: made.arrays)
    plan = plan_paged_attention(**given, **made.options)
    assert facts(plan.call) == facts(call)


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"calls": [{"operation": "gone", "call": {}}]}', '{"calls": [{"call": {}}]}'],
)
def test_a_file_that_holds_no_calls_is_refused(tmp_path, text):
    (tmp_path / "calls.json").write_text(text)
    with pytest.raises(DamagedFile, match=r"must be as record_calls wrote it, got .* Record the"):
        read_calls(tmp_path / "calls.json")


def test_a_call_of_another_version_is_refused(tmp_path):
    [recorded] = traced(*CASES["grouped"])
    with record_calls(tmp_path / "calls.json"):
        traced(*CASES["grouped"])
    text = (tmp_path / "calls.json").read_text()
    assert read_calls(tmp_path / "calls.json") == [recorded]
    (tmp_path / "calls.json").write_text(text.replace("inner", "depth"))
    with pytest.raises(DamagedFile, match="with TypeError: "):
        read_calls(tmp_path / "calls.json")
