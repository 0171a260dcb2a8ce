# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The table of costs of a program that never ran."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import jaxtyping
import pytest

from dovetail_profile._compat import module_of_compiled
from dovetail_profile.costs import costs

LENGTH, WIDTH = 5, 6


def scan(c, xs):
    def body(c, x):
        with jax.named_scope("layer"):
            return jnp.tanh(c @ x), None

    return jax.lax.scan(body, c, xs)[0]


@pytest.fixture(scope="module")
def compiled():
    shapes = (WIDTH, WIDTH), (LENGTH, WIDTH, WIDTH)
    return jax.jit(scan).lower(*(jax.ShapeDtypeStruct(s, "float32") for s in shapes)).compile()


def test_a_row_has_the_cost_of_all_rounds(compiled):
    table = costs(compiled)
    row = table[0]
    assert (row.executions, row.exact, row.scope) == (LENGTH, True, "layer")
    assert row.flops == LENGTH * 2 * WIDTH**3
    assert row.source.startswith("tests/test_costs.py:")
    assert row.intensity == pytest.approx(row.flops / row.bytes)
    assert sum(table.column("transcendentals")) == LENGTH * WIDTH**2
    # The products, the counter, and the comparison before each round and after the last.
    assert sum(table.column("flops")) == LENGTH * (2 * WIDTH**3 + 1) + LENGTH + 1
    assert table.column("flops") == sorted(table.column("flops"), reverse=True)
    assert table.notes == ()


def test_rounds_of_loops_within_loops_multiply():
    def nested(c, xs):
        return jax.lax.scan(lambda c, _: (scan(c, xs), None), c, None, length=3)[0]

    shapes = (WIDTH, WIDTH), (LENGTH, WIDTH, WIDTH)
    arguments = [jax.ShapeDtypeStruct(s, "float32") for s in shapes]
    row = costs(jax.jit(nested).lower(*arguments).compile())[0]
    assert (row.executions, row.flops) == (3 * LENGTH, 3 * LENGTH * 2 * WIDTH**3)


def test_loops_once_are_what_xla_counts(compiled):
    table = costs(compiled, loops="once")
    assert sum(table.column("flops")) == compiled.cost_analysis()["flops"]
    assert set(table.column("executions")) == {1}


def test_what_is_not_known_is_marked_and_noted():
    def loop(x):
        x = jax.lax.while_loop(lambda x: x.sum() < 3, lambda x: x @ x, x)
        return jnp.linalg.cholesky(x)

    table = costs(jax.jit(loop).lower(jax.ShapeDtypeStruct((WIDTH, WIDTH), "float32")).compile())
    assert [row.exact for row in table if row.opcode == "dot"] == [False]
    (call,) = table.where("opcode", "custom-call")
    assert (call.flops, call.bytes, call.intensity, call.exact) == (None, None, None, True)
    assert table.notes[0] == "1 x lapack_spotrf_ffi: no FLOP count"
    assert "unknown rounds" in table.notes[1]


@pytest.fixture
def unchecked():
    """Without the types that this suite checks, as in a user's program."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def test_another_object_is_refused_with_what_to_write(unchecked):
    x = jax.ShapeDtypeStruct((WIDTH, WIDTH), "float32")
    f = jax.jit(jnp.tanh)
    wrong = {
        f: "f.lower(*arguments).compile()",
        f.lower(x): "lowered.compile()",
        jnp.dot: ".lower(*arguments).compile()",
        sum: "jax.jit(f).lower(*arguments).compile() for a function f",
    }
    for value, instead in wrong.items():
        with pytest.raises(TypeError, match=f"got {type(value).__name__}; write ") as raised:
            costs(value)
        assert instead in str(raised.value)


def test_loops_is_one_of_two_words(compiled, unchecked):
    with pytest.raises(ValueError, match="'once' or 'counted', got 'twice'"):
        costs(compiled, loops="twice")


def test_a_compiled_program_keeps_its_buffers(compiled):
    module = module_of_compiled(compiled)
    assert module.name == "jit_scan"
    assert len(module.buffers) > 0


_FOUR_DEVICES = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
from dovetail_profile.costs import costs
mesh = jax.make_mesh((4,), ("x",))
def compiled(f, spec, out):
    x = jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=NamedSharding(mesh, spec))
    f = jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=out, check_vma=False)
    return jax.jit(f).lower(x).compile()
program = compiled(lambda x: jax.lax.psum(jnp.sin(x), "x"), P("x"), P())
(row,) = (row for row in costs(program) if row.opcode.startswith("all-reduce"))
print(row.flops, program.cost_analysis()["flops"])
program = compiled(lambda x: jax.lax.psum_scatter(x, "x", tiled=True), P(), P("x"))
(row,) = costs(program).where("opcode", "reduce-scatter")
print(row.flops, program.cost_analysis().get("flops", 0.0))
"""


@pytest.mark.thorough
def test_a_program_of_several_devices_has_the_costs_of_one():
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    run = subprocess.run(
        [sys.executable, "-c", _FOUR_DEVICES],
        env=os.environ | flags,
        capture_output=True,
        text=True,
        check=True,
    )
    added, scattered = run.stdout.splitlines()
    assert added == f"{2 * 8:.1f} {2 * 8:.1f}"  # two rows of eight on each device
    # XLA counts no additions of a reduce-scatter; a device adds four of each of its 16 elements.
    assert scattered == f"{3 * 16:.1f} 0.0"
