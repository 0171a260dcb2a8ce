# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Costs of instructions that a CPU's compiler does not leave in a program, written by hand."""

import json
import time

import jaxtyping
import pytest
from encoding import Field, message

from dovetail_profile.program.cost import Cost, Costs
from dovetail_profile.program.module import Module

TYPES = {"pred": 1, "s32": 4, "u8": 6, "f16": 10, "f32": 11, "bf16": 16}


@pytest.fixture
def unchecked():
    """Without the types that this suite checks, as in a user's program."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def shape(*text):
    """shape("f32", 2, 3); a tuple of several."""
    if isinstance(text[0], tuple):
        return message((2, 13), *((4, shape(*element)) for element in text))
    return message((2, TYPES[text[0]]), *((3, size) for size in text[1:]))


class Written:
    """A program written by hand. Methods return numbers of what they add."""

    def __init__(self):
        self.computations: list[Field] = []
        self.instructions: list[Field] = []
        self.count = self.sum = 0

    def add(self, opcode, result, *operands, called=(), **fields):
        self.count += 1
        head: list[Field] = [(1, f"{opcode}.{self.count}"), (2, opcode), (3, shape(*result))]
        head += [(35, self.count), *((36, i) for i in operands), *((38, i) for i in called)]
        more = [(int(key[1:]), value) for key, value in fields.items()]
        self.instructions.append((2, message(*head, *more)))
        return self.count

    def parameters(self, *shapes):
        return [self.add("parameter", s, _9=i) for i, s in enumerate(shapes)]

    def close(self):
        """Makes the instructions since the last one a computation."""
        number = 1000 + len(self.computations)
        body = message((1, f"c{number}"), *self.instructions, (5, number), (6, self.count))
        self.computations.append((3, body))
        self.instructions = []
        return number

    def costs(self):
        entry = self.close()
        module = Module(memoryview(message((1, "m"), *self.computations, (6, entry))))
        return Costs(module), module.entry.root

    def addition(self):
        parameters = self.parameters(("f32",), ("f32",))
        self.add("add", ("f32",), *parameters)
        return self.close()


def cost(opcode, result, *operands, called=None, **fields):
    """The cost of one instruction with operands of these shapes."""
    program = Written()
    computations = [getattr(program, name)() for name in called or ()]
    program.add(opcode, result, *program.parameters(*operands), called=computations, **fields)
    counter, root = program.costs()
    return counter.of(root)


M, K, N = 5, 7, 3
DOT = message((1, 1), (2, 0))
WINDOW = message((1, message((1, 3), (2, 2))))  # three wide, in steps of two

WHOLE = message((1, message((1, 9), (2, 1), (3, 4), (4, 4))))  # nine wide, padded by four
# [batch, width, features], and kernels of [width, inputs, outputs].
LAYOUT = message((7, 0), (8, 2), (11, 1), (3, 1), (4, 2), (6, 0), (9, 0), (10, 2), (12, 1))

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


INTEGER = ("s32",)


def integer(program, value):
    return program.add("constant", INTEGER, _8=message((4, value)))


def loop(direction, start, stop, step, *, carried=False, moving=0):
    """A loop from a constant, to a constant in its condition or in its state."""
    program, state = Written(), [INTEGER, INTEGER]
    body = program.parameters(state)[0]
    i, limit = (program.add("get-tuple-element", INTEGER, body, _13=k) for k in range(2))
    i = program.add("add", INTEGER, i, integer(program, step))
    limit = program.add("add", INTEGER, limit, integer(program, moving)) if moving else limit
    program.add("tuple", state, i, limit)
    called = [program.close()]
    condition = program.parameters(state)[0]
    i, limit = (program.add("get-tuple-element", INTEGER, condition, _13=k) for k in range(2))
    limit = limit if carried else integer(program, stop)
    program.add("compare", ("pred",), i, limit, _63=direction)
    called.append(program.close())
    state_before = program.add("tuple", state, integer(program, start), integer(program, stop))
    program.add("while", state, state_before, called=called)
    counter, root = program.costs()
    return counter, root, called


@pytest.mark.parametrize(
    ("direction", "start", "stop", "step", "rounds"),
    [
        ("LT", 3, 17, 1, 14),
        ("LT", 0, 10, 4, 3),
        ("LE", 3, 17, 2, 8),
        ("GT", 17, 3, -2, 7),
        ("GE", 17, 3, -7, 3),
        ("NE", 0, 12, 4, 3),
        ("NE", 0, 13, 4, None),
        ("LT", 5, 5, 1, 0),
        ("LT", 5, 9, -1, None),
        ("EQ", 5, 5, 1, None),
    ],
)
def test_a_counter_fixes_the_rounds(direction, start, stop, step, rounds):
    counter, root, (body, condition) = loop(direction, start, stop, step)
    assert counter.trips(root) == rounds
    carried, again, _ = loop(direction, start, stop, step, carried=True)
    assert carried.trips(again) == rounds
    assert counter.total().flops == (1 + 1 if rounds is None else rounds + rounds + 1)
    assert counter.executions[condition] == (
        1 if rounds is None else rounds + 1,
        rounds is not None,
    )
    assert counter.executions.get(body, (0,))[0] == (1 if rounds is None else rounds)


def test_a_moving_limit_fixes_nothing():
    counter, root, _ = loop("LT", 0, 10, 2, carried=True, moving=1)
    assert counter.trips(root) is None


def test_a_conditional_costs_its_dearest_branch():
    program = Written()
    branches = []
    for opcode, size in ("negate", 5), ("exponential", 9), ("add", 7):
        x = program.parameters(("f32", size))[0]
        program.add(opcode, ("f32", size), *[x] * (2 if opcode == "add" else 1))
        branches.append(program.close())
    operands = program.parameters(INTEGER, ("f32", 5), ("f32", 9), ("f32", 7))
    program.add("conditional", ("f32", 5), *operands, called=branches)
    counter, root = program.costs()
    assert counter.of(root) == Cost(0.0, 0.0, 0.0)
    assert counter.total() == Cost(7.0, 4 * 7 * 3.0, 9.0)
    assert [counter.executions[branch] for branch in branches] == [(1, False)] * 3


PRODUCT = {"gemm_backend_config": {"dot_dimension_numbers": {"lhs_contracting_dimensions": ["1"]}}}
OPERANDS = [("f32", M, K), ("f32", K, N)]
RESULT = [("f32", M, N), ("u8", 100)]  # and workspace
MOVED = 4.0 * (M * K + K * N + M * N) + 100


def call(target, result, *operands, config="", **fields):
    text = config if isinstance(config, str) else json.dumps(config)
    return cost("custom-call", result, *operands, _28=target, _43=text, **fields)


def test_a_library_product_counts_as_a_dot():
    for target in "__cublas$gemm", "__cublas$lt$matmul", "__onednn$matmul":
        assert call(target, RESULT, *OPERANDS, config=PRODUCT) == Cost(2.0 * M * K * N, MOVED, None)
    assert call("__cublas$gemm", RESULT, *OPERANDS) == Cost(None, None, None)
    shapes = [("f32", 2, M, K), ("f32", 2, K, N)]
    assert call("__onednn$matmul", [("f32", 2, M, N)], *shapes).flops == 2 * 2 * M * K * N


def test_the_gradients_of_a_library_convolution_count_as_much():
    # [batch 2, 9 wide, 4 features] with a kernel of 3 in steps of 2, without padding.
    image, kernel, output = ("f32", 2, 9, 4), ("f32", 3, 4, 6), ("f32", 2, 4, 6)
    shapes = {
        "__cudnn$convForward": [output, image, kernel],
        "__cudnn$convBackwardInput": [image, output, kernel],
        "__cudnn$convBackwardFilter": [kernel, image, output],
    }
    for target, (result, *operands) in shapes.items():
        made = call(target, [result, ("u8", 0)], *operands, _15=WINDOW, _16=LAYOUT)
        assert made.flops == 2 * 2 * 4 * 6 * 4 * 3


def attention(mask="NO_MASK", **fields):
    config = {"intermediate_tensor_shape": {"dimensions": ["2", "3", "8", "8"]}, "mask_type": mask}
    return {"cudnn_fmha_backend_config": config | fields}


def test_library_attention_counts_the_scores_that_the_mask_shows():
    q = ("bf16", 2, 8, 3, 16)
    forward, backward = "__cudnn$fmhaSoftmax", "__cudnn$fmhaSoftmaxBackward"

    def flops(target, **fields):
        return call(target, [q, ("u8", 0)], q, q, q, config=attention(**fields)).flops

    product = 2 * 2 * 3 * 16
    assert flops(forward) == 2 * product * 64
    assert flops(backward) == 5 * product * 64
    assert flops(forward, mask="PADDING_CAUSAL") == 2 * product * 36
    window = {"mask": "CAUSAL", "sliding_window_length": 2}
    assert flops(forward, **window) == 2 * product * (1 + 7 * 2)
    assert flops(forward, is_paged_attention=True) is None
    assert call(forward, [q], q, q, q).flops is None


def test_a_kernel_states_its_cost():
    estimate = '{"custom_call_config": {"body": "TUzvUgFNTElS", "cost_estimate": {"flops": 12, '
    estimate += '"transcendentals": 3, "bytes_accessed": 40}, "needs_layout_passes": true}}'
    assert call("tpu_custom_call", *OPERANDS, config=estimate) == Cost(12.0, 40.0, 3.0)
    attributes = "{flops = 12 : i64, recomputed_flops = 5 : i64}"
    moved = 4.0 * (M * K + K * N)
    assert call("mine", *OPERANDS, config=attributes) == Cost(17.0, moved, None)
    assert call("mine", *OPERANDS, config="{scale = 12 : i64}") == Cost(None, None, None)


def test_a_marker_costs_nothing():
    assert call("Sharding", ("f32", 5), ("f32", 5)) == Cost(0.0, 0.0, 0.0)


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
