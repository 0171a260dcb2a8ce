# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Costs of compiled programs, against XLA's totals and against formulas."""

import corpus
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from corpus import Sizes, array
from jax import lax

from dovetail_profile._compat import module_of_compiled
from dovetail_profile.program.cost import Cost, Costs

# XLA adds its numbers as float32, so that a total is exact below this.
EXACT = 2**24


def compiled(program, arguments, options=None):
    return jax.jit(program).lower(*arguments).compile(compiler_options=options)


def xla(program):
    totals = program.cost_analysis()
    keys = "flops", "bytes accessed", "transcendentals"
    total = Cost(*(float(totals.get(key, 0)) for key in keys))
    assert 0 <= total.flops < EXACT
    assert 0 < total.bytes < EXACT
    return total


def ours(program, loops="once"):
    counter = Costs(module_of_compiled(program))
    assert not counter.unknown
    return counter.total(loops)


def check_operations(program):
    total, expected = ours(program), xla(program)
    assert (total.flops, total.transcendentals) == (expected.flops, expected.transcendentals)


@pytest.mark.parametrize("name", corpus.CORPUS)
def test_a_fused_program_has_the_operations_that_xla_counts(name):
    check_operations(compiled(*corpus.CORPUS[name](Sizes(name, 0))))


def test_one_program_of_several_has_the_operations_that_xla_counts():
    names = ["dot transposed", "conv of groups", "argmax", "sort", "fft", "gather", "softmax"]
    programs = [corpus.CORPUS[name](Sizes(name, 1)) for name in names]

    def several(arguments):
        return [program(*a) for (program, _), a in zip(programs, arguments, strict=True)]

    check_operations(compiled(several, ([arguments for _, arguments in programs],)))


@pytest.mark.thorough
def test_a_training_step_has_the_operations_that_xla_counts():
    program, arguments = corpus.decoder_step(Sizes("decoder", 0))
    check_operations(compiled(program, arguments))
    check_operations(compiled(program, arguments, corpus.UNFUSED))


# Pointers of the tuples in each program. XLA counts them as bytes, and they are none of a user's.
POINTERS = {
    "conv gradient": 2,
    "pool gradient": 0,
    "scan": 10,
    "switch": 2,
    "MLP gradient": 2,
    "mathematics": 13,
    "random numbers": 16,
}


def pointer_bytes():
    """XLA's size of a pointer: 8 on jax 0.10.2, 4 on 0.12."""
    return (xla(compiled(lambda x: (x, x), (array(8),))).bytes - 2 * 2 * 8 * 4) / 2


def extra_bytes(name, arguments, text):
    """Bytes that XLA counts and we do not: a gather reads, and a scatter updates, some rows only.

    XLA knows this of the bare instruction, but the CPU compiler wraps each into a fusion.
    """
    if name == "gather":
        x, indices = arguments
        return 4 * x.shape[1] * (x.shape[0] - indices.shape[0])
    if name == "scatter":  # reads, and writes
        x, _, updates = arguments
        return 2 * 4 * (x.size - updates.size)
    if name == "pool gradient":  # likewise, into a padded image: one padded row and column
        images, height, width = arguments[0].shape
        rows, columns = -(-height // 2), -(-width // 2)
        padded = (2 * rows + 1) * 2 * columns
        return 2 * 4 * images * (padded - rows * columns)
    if name == "dynamic update" and "wrapped_dynamic" not in text:
        return -4  # XLA reads the first index alone, of two
    return 0


def check_bytes(name, seed):
    program, arguments = corpus.CORPUS[name](Sizes(name, seed))
    program = compiled(program, arguments, corpus.UNFUSED)
    check_operations(program)
    extra = extra_bytes(name, arguments, program.as_text())
    extra += POINTERS.get(name, 0) * pointer_bytes()
    assert ours(program).bytes + extra == xla(program).bytes


def test_an_unfused_program_has_the_bytes_that_xla_counts():
    for name in "softmax", "scan", "gather":
        check_bytes(name, 0)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", corpus.CORPUS)
def test_an_unfused_program_has_the_operations_and_bytes_that_xla_counts(name, seed):
    check_bytes(name, seed)


def test_a_call_of_a_foreign_function_is_unknown():
    program = compiled(jnp.linalg.cholesky, (array(6, 6),))
    counter = Costs(module_of_compiled(program))
    assert counter.unknown == {"lapack_spotrf_ffi": 1}
    call = next(x for x in module_of_compiled(program).by_id.values() if x.opcode == "custom-call")
    assert counter.of(call) == Cost(None, None, None)
    total, expected = counter.total("once"), xla(program)
    assert total.flops - 1 == expected.flops  # XLA counts -1 for what it does not know
    assert total.bytes - 1 == expected.bytes


def test_a_product_takes_a_multiplication_and_an_addition_for_each_term():
    left, right = np.ones((2, 5, 7), np.float32), np.ones((2, 7, 3), np.float32)
    program = compiled(jnp.matmul, (left, right))
    assert ours(program) == Cost(2 * float((left @ right).sum()), 4.0 * (70 + 42 + 30), 0.0)


CONVOLUTIONS = [name for name in corpus.CORPUS if name.startswith("conv")]


@pytest.mark.parametrize("name", [name for name in CONVOLUTIONS if name != "conv gradient"])
def test_a_convolution_of_ones_counts_its_own_multiplications(name):
    program, arguments = corpus.CORPUS[name](Sizes(name, 3))
    ones = [jnp.ones(x.shape) for x in arguments]
    assert ours(compiled(program, arguments)).flops == 2 * float(program(*ones).sum())


def test_a_loop_counts_its_rounds():
    length, width = 5, 6
    shapes = array(width, width), array(length, width, width)
    scan = compiled(lambda c, xs: lax.scan(lambda c, x: (jnp.tanh(c @ x), None), c, xs)[0], shapes)
    total = ours(scan, "counted")
    # Beside the products: the counter of each round, and its comparison, once more.
    assert total.flops == length * (2 * width**3 + 1) + length + 1
    assert total.transcendentals == length * width**2
    assert ours(scan).transcendentals == width**2


@pytest.mark.parametrize(
    ("start", "stop", "step", "rounds"), [(3, 17, 1, 14), (17, 3, -2, 7), (0, 9, 4, 3)]
)
def test_the_rounds_of_a_counter_are_known_without_a_statement(start, stop, step, rounds):
    def before(i):
        return i < stop if step > 0 else i > stop

    def loop(x):
        state = jnp.int32(start), x
        return lax.while_loop(lambda s: before(s[0]), lambda s: (s[0] + step, s[1] @ s[1]), state)

    passes = "while-loop-trip-count-annotator", "small-while-loop-hoisting", *corpus.PASSES
    options = {"xla_disable_hlo_passes": ",".join(passes)}
    program = compiled(loop, (array(6, 6),), options)
    module = module_of_compiled(program)
    (repeated,) = (x for x in module.by_id.values() if x.opcode == "while")
    assert "known_trip_count" not in repeated.attributes.text(43)
    assert Costs(module).trips(repeated) == rounds


def test_a_loop_of_values_has_no_rounds_and_counts_once():
    program = compiled(*corpus.CORPUS["while"](Sizes("while", 0)))
    module = module_of_compiled(program)
    counter = Costs(module)
    (repeated,) = (x for x in module.by_id.values() if x.opcode == "while")
    assert counter.trips(repeated) is None
    assert counter.total("counted") == counter.total("once")
    assert {e.exact for e in counter.executions.values()} == {True, False}
    assert counter.of(repeated) == Cost(0.0, 0.0, 0.0)


def test_a_fused_slice_reads_the_slice_and_a_fused_update_writes_it():
    rows, width = 40, 7
    read = compiled(
        lambda x, i: jnp.tanh(lax.dynamic_slice(x, (i, 0), (3, width))),
        (array(rows, width), array(dtype="int32")),
    )
    counter = Costs(module_of_compiled(read))
    moved = [counter.of(x).bytes for x in module_of_compiled(read).entry.instructions]
    assert max(moved) == 2 * 4 * 3 * width + 4  # and the index

    def update(x, u, i):
        return lax.dynamic_update_slice(x, jnp.tanh(u), (i, 0))

    shapes = array(rows, width), array(3, width), array(dtype="int32")
    write = jax.jit(update, donate_argnums=0).lower(*shapes).compile()
    total = ours(write)
    assert 2 * 4 * 3 * width <= total.bytes < 4 * 4 * 3 * width < 4 * rows * width
