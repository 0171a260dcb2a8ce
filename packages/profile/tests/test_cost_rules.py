# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Costs of instructions absent from programs of a CPU's compiler, and of fusions."""

import time

import jaxtyping
import pytest
from encoding import message
from written import LAYOUT, WINDOW, K, M, N, Written, cost

from dovetail_profile.program.cost import Cost


@pytest.fixture
def unchecked():
    """Without the types that this suite checks, as in a user's program."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


DOT = message((1, 1), (2, 0))
WHOLE = message((1, message((1, 9), (2, 1), (3, 4), (4, 4))))  # nine wide, padded by four

RULES = [
    (cost("cholesky", ("f32", 6, 6), ("f32", 6, 6)), 6**3 // 3, 4 * 36),
    (
        cost("triangular-solve", ("f32", 6, 3), ("f32", 6, 6), ("f32", 6, 3)),
        2 * 6 * 6 * 3,
        4 * (18 + 18 + 18),
    ),
    (
        cost("scaled-dot", ("f32", M, N), ("bf16", M, K), ("bf16", K, N), _30=DOT),
        2 * M * K * N,
        4 * M * N + 2 * K * (M + N),
    ),
    # Rows of groups times the matrix of each: every row once.
    (
        cost(
            "ragged-dot",
            *[("f32", M, N), ("f32", M, K), ("f32", 4, K, N), ("s32", 4)],
            _90=message((1, message((1, 1), (2, 1))), (2, 0), (3, 0)),
        ),
        2 * M * K * N,
        4 * (M * N + M * K + 4 * K * N + 4),
    ),
    # The gradient of the matrices: each row again counts once.
    (
        cost(
            "ragged-dot",
            *[("f32", 4, K, N), ("f32", M, K), ("f32", M, N), ("s32", 4)],
            _90=message((1, message((1, 0), (2, 0))), (2, 0)),
        ),
        2 * M * K * N,
        4 * (M * N + M * K + 4 * K * N + 4),
    ),
    (cost("map", ("f32", 5), ("f32", 5), ("f32", 5), called=["addition"]), 5, 60),
    (
        cost(
            "select-and-scatter",
            *[("f32", 9), ("f32", 9), ("f32", 4), ("f32",)],
            called=["addition", "addition"],
            _15=WINDOW,
        ),
        4 * 2 + 4,
        4 * (9 + 9 + 4 + 1),
    ),
    # Each of five results is the sum of all five, which is added once: XLA counts 4 + 5 / 5.
    (
        cost("reduce-window", *[("f32", 5), ("f32", 5), ("f32",)], called=["addition"], _15=WHOLE),
        5,
        4 * 11,
    ),
    (
        cost("reduce-window", *[("f32", 4), ("f32", 9), ("f32",)], called=["addition"], _15=WINDOW),
        4 * 2,
        4 * 14,
    ),
    # Of four images, each pair goes with its own half of the kernel's six outputs.
    (
        cost(
            "convolution",
            *[("f32", 2, 4, 6), ("f32", 4, 9, 4), ("f32", 3, 4, 6)],
            _15=WINDOW,
            _16=LAYOUT,
            _58=2,
        ),
        2 * 2 * 4 * 6 * 4 * 3,
        4 * (48 + 144 + 72),
    ),
    (cost("all-reduce", ("f32", 6), ("f32", 6), called=["addition"]), 6, 48),
    # Two of eight elements stay on this device: three additions for each.
    (cost("reduce-scatter", ("f32", 2), ("f32", 8), called=["addition"]), 6, 40),
    (cost("all-gather-start", (("f32", 2), ("f32", 8)), ("f32", 2)), 0, 40),
    (cost("collective-permute-start", (("f32", 2), ("f32", 2)), ("f32", 2)), 0, 16),
    (cost("copy-start", (("f32", 8), ("f32", 8), ("s32",)), ("f32", 8)), 0, 64),
    (cost("send", (("f32", 8), ("s32",)), ("f32", 8)), 0, 32),
    (cost("recv", (("f32", 8), ("s32",))), 0, 32),
    (cost("gather", ("f32", 4, 3), ("f32", 50, 3), ("s32", 4)), 0, 2 * 48 + 16),
    (
        cost(
            "scatter",
            *[("f32", 50, 3), ("f32", 50, 3), ("s32", 4), ("f32", 4, 3)],
            called=["addition"],
        ),
        12,
        3 * 48 + 16,
    ),
    (cost("get-tuple-element", ("f32", 50), (("f32", 50), ("f32", 2))), 0, 0),
]


def test_rules_equal_their_formulas():
    for made, flops, size in RULES:
        assert made == Cost(float(flops), float(size), 0.0)


def test_random_bits_count_as_transcendental():
    assert cost("rng", ("f32", 5, 3), ("f32",), ("f32",)).transcendentals == 15


def test_an_unknown_opcode_is_none_and_counted():
    program = Written()
    (x,) = program.parameters(("f32", 5))
    for _ in range(2):
        program.add("frobnicate", ("f32", 5), x)
    program.add("negate", ("f32", 5), x)
    counter, root = program.costs()
    assert counter.unknown == {"frobnicate": 2}
    assert counter.of(root) == Cost(5.0, 40.0, 0.0)
    assert counter.total() == counter.of(root)
    assert cost("frobnicate", ("f32", 5)) == Cost(None, None, None)
    assert cost("frobnicate", ("f32", 5)).intensity is None


def test_a_fusion_with_an_unknown_opcode_has_bytes_alone():
    program = Written()
    program.add("frobnicate", ("f32", 5), *program.parameters(("f32", 5)))
    body = program.close()
    program.add("fusion", ("f32", 5), *program.parameters(("f32", 5)), called=[body])
    counter, root = program.costs()
    assert counter.of(root) == Cost(None, 40.0, None)
    assert counter.unknown == {"fusion": 1}


def test_work_started_apart_belongs_to_its_computation():
    program = Written()
    inner = program.add("negate", ("f32", 5), *program.parameters(("f32", 5)))
    body = program.close()
    program.add("async-start", ("f32", 5), *program.parameters(("f32", 5)), called=[body])
    counter, root = program.costs()
    assert counter.of(root) == Cost(0.0, 0.0, 0.0)
    assert counter.total().flops == 5
    assert counter.executions[body].runs == 1
    assert inner < root.id


def fused(body, *parameters):
    """The bytes of a fusion: `body(program, *numbers)` adds its instructions."""
    program = Written()
    program.sum = program.addition()
    result = body(program, *program.parameters(*parameters))
    inner = program.close()
    program.add("fusion", result, *program.parameters(*parameters), called=[inner])
    counter, root = program.costs()
    return counter.of(root).bytes


LARGE, SMALL = ("f32", 100, 3), ("f32", 2, 3)


def test_a_fusion_reads_what_its_body_needs_and_no_more_than_all():
    def slices(program, x):
        converted = program.add("convert", LARGE, x)
        parts = [program.add("slice", SMALL, converted) for _ in range(2)]
        program.add("add", SMALL, *parts)
        return SMALL

    assert fused(slices, LARGE) == 4 * 6 * 3  # two slices, through a conversion, and the result

    def twice(program, x):
        program.add("multiply", LARGE, program.add("slice", LARGE, x), x)
        return LARGE

    assert fused(twice, LARGE) == 2 * 4 * 300


def test_an_update_in_place_leaves_the_rest_alone():
    def update(program, x, u, i):
        program.add("dynamic-update-slice", LARGE, x, u, i, i)
        return LARGE

    def into_new(program, u, i):
        zeros = program.add("broadcast", LARGE, program.add("constant", ("f32",)))
        program.add("dynamic-update-slice", LARGE, zeros, u, i, i)
        return LARGE

    def several(program, x, u, i):
        updated = program.add("dynamic-update-slice", LARGE, x, u, i, i)
        program.add("tuple", [LARGE, SMALL], updated, program.add("negate", SMALL, u))
        return [LARGE, SMALL]

    def scatter(program, x, i, u):
        program.add("scatter", LARGE, x, i, u, called=[program.sum])
        return LARGE

    assert fused(scatter, LARGE, ("s32", 2), SMALL) == 3 * 24 + 8
    assert fused(update, LARGE, SMALL, ("s32",)) == 24 + 24 + 4
    assert fused(into_new, SMALL, ("s32",)) == 1200 + 24 + 4
    assert fused(several, LARGE, SMALL, ("s32",)) == 24 + 24 + 24 + 4


def test_a_fusion_within_a_fusion_needs_what_its_body_needs():
    program = Written()
    program.add("slice", SMALL, *program.parameters(LARGE))
    slicing = program.close()

    def body(program, x):
        program.add("negate", SMALL, program.add("fusion", SMALL, x, called=[slicing]))
        return SMALL

    result = body(program, *program.parameters(LARGE))
    inner = program.close()
    program.add("fusion", result, *program.parameters(LARGE), called=[inner])
    counter, root = program.costs()
    assert counter.of(root) == Cost(6.0, 48.0, 0.0)


def test_large_constants_are_read_and_small_ones_are_code():
    def table(program, x):
        program.add("add", LARGE, x, program.add("constant", LARGE))
        return LARGE

    def scale(program, x):
        one = program.add("constant", ("f32", 1, 3))
        program.add("add", LARGE, x, program.add("broadcast", LARGE, one))
        return LARGE

    assert fused(table, LARGE) == 3 * 1200
    assert fused(scale, LARGE) == 2 * 1200


@pytest.mark.thorough
def test_ten_thousand_instructions_take_half_a_second(unchecked):
    program = Written()
    x, y = program.parameters(LARGE, LARGE)
    program.add("add", LARGE, x, y)
    body = program.close()
    x, y = program.parameters(LARGE, LARGE)
    for _ in range(5_000):
        program.add("dot", ("f32", 100, 100), x, y, _30=message((1, 1), (2, 1)))
        program.add("fusion", LARGE, x, y, called=[body])
    counter, root = program.costs()
    start = time.process_time()
    assert counter.total().flops == 5_000 * (2 * 100 * 100 * 3 + 300)
    assert time.process_time() - start < 0.5
    assert root.opcode == "fusion"
