# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Every operation under the transformations of JAX, on one device and on two.

The call on one device is the expected value; the conformance suites compare it with NumPy.
"""

import json
import os
from pathlib import Path

import jax
import jax.monitoring
import jax.numpy as jnp
import pytest

import forced_devices
import warm_start
from dovetail_kernels import (
    adjust_logits,
    attention,
    grouped_matmul,
    linear_cross_entropy,
    pack_weights,
    permute,
    quantized_matmul,
    sample,
    token_logprobs,
    warp_logits,
)

pytestmark = pytest.mark.thorough

PROGRAM = Path(__file__).parent / "programs" / "composition.py"
# Sums of at most 41 terms of about 1 in another order, and sines of them: a few units of float32.
TOLERANCE = 5e-6
# Tokens of a permutation are sorted together: on an Explicit mesh their split is refused, with what
# to write instead. Inside of a shard_map each device sorts its own.
REFUSED = {("experts", "explicit"): "Gather that axis with jax.sharding.reshard, or permute inside"}


def table(*transformations):
    done = warm_start.run([PROGRAM, *transformations], env=forced_devices.environment(2))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def is_right(value, refusal):
    if refusal is not None:
        return refusal in value
    return value is None or (isinstance(value, float) and value <= TOLERANCE)


def assert_equal_to_eager(table):
    wrong = [
        (operation, transformation, kind, value)
        for operation, row in table.items()
        for transformation, cells in row.items()
        for kind, value in cells.items()
        if not is_right(value, REFUSED.get((operation, transformation)))
    ]
    assert not wrong, "\n".join(map(str, wrong))


def test_every_operation_runs_in_a_shard_map_with_default_checks():
    results = table("shard_map")
    assert len(results) == 21
    assert sum(row["shard_map"]["gradient"] is not None for row in results.values()) == 16
    assert_equal_to_eager(results)


@pytest.mark.slow
def test_every_operation_under_every_transformation():
    """With COMPOSITION_TABLE=FILE in the environment, the result is written there as Markdown."""
    results = table()
    assert_equal_to_eager(results)
    if file := os.environ.get("COMPOSITION_TABLE"):
        Path(file).write_text(as_markdown(results), encoding="utf-8")


def as_markdown(results):
    columns = list(next(iter(results.values())))
    lines = [
        "# Composition",
        "",
        "Written by `nox -s slow`: each operation under each transformation, on a CPU with two "
        "devices. A cell has the largest difference from the eager call on one device, of the "
        "result and of the gradients, in float32. For CUDA and TPU the program was lowered, not "
        "run.",
        "",
        f"| operation | {' | '.join(columns)} |",
        "|---" * (len(columns) + 1) + "|",
    ]
    for operation, row in results.items():
        cells = [cell(column, row[column]) for column in columns]
        lines.append(f"| {operation} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def cell(column, values):
    kinds = [value for value in values.values() if value is not None]
    if isinstance(kinds[0], str):
        return "refused"
    if column in ("cuda", "tpu"):
        return "lowered" if len(kinds) == 1 else "lowered, with gradients"
    return ", ".join("0" if value == 0 else f"{value:.0e}" for value in kinds)


def test_eager_calls_compile_once():
    compiled = []

    def listen(event, duration, **of):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    def normal(seed, *shape):
        return jax.random.normal(jax.random.key(seed), shape)

    q, k, x = normal(0, 3, 12, 4, 8), normal(1, 3, 12, 2, 8), normal(2, 9, 16)
    w, sizes, packed = normal(3, 2, 16, 5), jnp.array([4, 5]), pack_weights(normal(4, 16, 6))
    labels, chosen = jnp.arange(9) % 7, jnp.arange(18).reshape(9, 2) % 3
    head, keys = normal(5, 16, 7), jax.random.split(jax.random.key(6), 9)
    counts = jnp.ones((9, 16), jnp.int32)
    calls = {
        "attention": lambda: attention(q, k, k, causal=True),
        "gradient of attention": lambda: jax.grad(lambda q: attention(q, k, k).sum())(q),
        "sample": lambda: sample(x, keys=keys, top_k=3, top_p=0.9),
        "warp_logits": lambda: warp_logits(x, temperature=0.5, top_k=3),
        "adjust_logits": lambda: adjust_logits(
            x, output_counts=counts, bias=(chosen, x[:, :2]), presence_penalty=0.5
        ),
        "token_logprobs": lambda: token_logprobs(x, labels, k=3),
        "grouped_matmul": lambda: grouped_matmul(x, w, sizes),
        "gradient of grouped_matmul": lambda: jax.grad(lambda x: grouped_matmul(x, w, sizes).sum())(
            x
        ),
        "quantized_matmul": lambda: quantized_matmul(x, packed),
        "linear_cross_entropy": lambda: linear_cross_entropy(x, head, labels).sum,
        "permute": lambda: permute(x, chosen, count=3)[0],
    }
    for call in calls.values():
        call()
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        again = {}
        for name, call in calls.items():
            compiled.clear()
            jax.block_until_ready(call())
            again[name] = len(compiled)
        assert again == dict.fromkeys(calls, 0)
        compiled.clear()
        jax.jit(lambda x: x * 3 + 1)(x)
        assert compiled  # the event that is counted
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads memory from /proc")
def test_a_thousand_calls_of_an_engine_compile_nothing_and_keep_their_memory():
    """800 calls after 200 to warm up. An arena of malloc may grow: 16 MiB, or 20 KiB for a call."""
    program = PROGRAM.with_name("engine_loop.py")
    done = warm_start.run([program], env=forced_devices.environment(1))
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert sum(result["operations"].values()) >= 1000
    assert len(result["operations"]) == 8
    assert result["warm_compilations"] > 0  # the event that is counted
    assert result["compilations"] == 0
    few, many = result["live_arrays"]
    assert many == few
    assert result["grown_bytes"] < 2**24
