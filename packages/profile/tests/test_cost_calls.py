# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Costs of loops, conditionals and custom calls."""

import json

import pytest
from encoding import message
from written import LAYOUT, WINDOW, K, M, N, Written, cost

from dovetail_profile.program.cost import Cost

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
