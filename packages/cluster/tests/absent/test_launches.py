# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Texts as XLA:GPU writes them, shortened, with what must be counted by hand."""

import pytest

from dovetail_cluster.absent.count import Text
from dovetail_cluster.absent.launches import KEPT, launches_of

TABLE, ROWS = "bf16[64,32]{1,0}", "bf16[8,32]{1,0}"  # 4,096 and 512 bytes


def _computation(name, *lines, entry=False):
    head = f"{'ENTRY ' if entry else ''}%{name} (p: f32[2]) -> f32[2] {{"
    return "\n".join([head, *(f"  {line}" for line in lines), "}"])


def _launches(entry, *computations):
    module = ["HloModule jit_step", *computations, _computation("main", *entry, entry=True), ""]
    return launches_of(Text("\n".join(module)))


def _fusion(result, *operands, calls):
    return f"%out = {result} fusion({', '.join(operands)}), kind=kLoop, calls=%{calls}"


DOT = _computation("dots", f"ROOT %dot.1 = {ROWS} dot(%a, %b), lhs_contracting_dims={{1}}")
ADD = _computation("adds", f"%a = {ROWS} parameter(0)", f"ROOT %sum = {ROWS} add(%a, %a)")
INPUTS = [f"%x = {ROWS} parameter(0)", f"%table = {TABLE} parameter(1)"]


def test_what_becomes_no_kernel_is_no_launch():
    names = [f"%t = ({ROWS}, s32[]) tuple(%x, %i)", f"%e = {ROWS} get-tuple-element(%t), index=0"]
    assert _launches([*INPUTS, *names, f"%b = {ROWS} bitcast(%e)"])[:3] == (0, 0, 0)


def test_what_begins_asynchronously_counts_where_it_begins():
    begun = f"%s = (({ROWS}), {ROWS}, s32[]) fusion-start(%x), kind=kLoop, calls=%adds"
    done = f"%out = {ROWS} fusion-done(%s)"
    assert _launches([*INPUTS, begun, done], ADD)[:3] == (1, 0, 2 * 512)


def test_a_fusion_reads_its_operands_and_writes_its_result():
    assert _launches([*INPUTS, _fusion(ROWS, "%x", calls="adds")], ADD)[:3] == (1, 0, 2 * 512)


@pytest.mark.parametrize(
    "product",
    [
        _fusion(ROWS, "%x", "%table", calls="dots"),
        f'%out = {ROWS} custom-call(%x, %table), custom_call_target="__cublas$lt$matmul"',
        f'%out = {ROWS} custom-call(%x, %table), custom_call_target="__cudnn$fmhaSoftmax"',
    ],
)
def test_a_product_is_a_launch_whose_bytes_do_not_count(product):
    assert _launches([*INPUTS, product], DOT)[:3] == (1, 0, 0)


def test_a_call_of_a_library_that_multiplies_nothing_counts_whole():
    sort = f'%out = {ROWS} custom-call(%x), custom_call_target="__cub$DeviceRadixSort"'
    assert _launches([*INPUTS, sort])[:3] == (1, 0, 2 * 512)


def _loop(rest):
    return [*INPUTS, f"%loop = ({ROWS}) while(%x), condition=%less, body=%body{rest}"]


BODY = _computation("body", f"%x = {ROWS} parameter(0)", _fusion(ROWS, "%x", calls="adds"))
LESS = _computation("less", "ROOT %c = pred[] compare(%a, %b), direction=LT")
KNOWN = ', backend_config={"known_trip_count":{"n":"7"}}'


def test_rounds_of_a_loop_multiply_its_launches_and_bytes():
    assert _launches(_loop(KNOWN), ADD, BODY, LESS)[:3] == (7, 0, 7 * 1024)


def test_the_host_waits_for_a_loop_of_unknown_length():
    assert _launches(_loop(""), ADD, BODY, LESS)[:3] == (1, 1, 1024)


def test_a_conditional_in_a_loop_is_a_wait_in_each_round():
    branch = "%if = f32[2] conditional(%p, %x), branch_computations={%yes, %no}"
    yes = _computation("yes", f"%x = {ROWS} parameter(0)", _fusion(ROWS, "%x", calls="adds"))
    no = _computation("no", f"ROOT %x = {ROWS} parameter(0)")
    text = _launches(_loop(KNOWN), ADD, yes, no, LESS, _computation("body", branch))
    assert text[:3] == (7, 7, 7 * 1024)


SLICED = _computation(
    "slices",
    f"%a = {TABLE} parameter(0)",
    f"%view = {TABLE} bitcast(%a)",
    f"ROOT %s = {ROWS} dynamic-slice(%view, %i), dynamic_slice_sizes={{8,32}}",
)
REPLACED = _computation(
    "replaces",
    f"%a = {TABLE} parameter(0)",
    f"%new = {ROWS} parameter(1)",
    f"%in = {TABLE} dynamic-update-slice(%a, %new, %i)",
    f"ROOT %view = {TABLE} bitcast(%in)",
)


def test_of_an_operand_that_is_sliced_the_part_taken_counts():
    assert _launches([*INPUTS, _fusion(ROWS, "%table", calls="slices")], SLICED)[2] == 2 * 512


@pytest.mark.parametrize("op", ["dynamic-update-slice(%a, %new, %i)", "scatter(%a, %i, %new)"])
def test_of_a_result_written_in_place_the_part_written_counts(op):
    update = _fusion(TABLE, "%table", "%x", calls="replaces")
    inner = REPLACED.replace("dynamic-update-slice(%a, %new, %i)", op)
    assert _launches([*INPUTS, update], inner)[2] == 2 * 512


def test_an_operand_that_is_sliced_and_read_whole_counts_whole():
    both = SLICED.replace("  ROOT", f"  %all = {TABLE} negate(%a)\n  ROOT")
    assert _launches([*INPUTS, _fusion(ROWS, "%table", calls="slices")], both)[2] == 4096 + 512


WIDENS = _computation(
    "widens",
    f"%a = {TABLE} parameter(0)",
    "%w = f32[64,32]{1,0} convert(%a)",
    "ROOT %scaled = f32[64,32]{1,0} multiply(%w, %w)",
)


def test_a_weight_written_in_a_wider_dtype_is_a_copy_with_its_source():
    fusion = _fusion("f32[64,32]{1,0}", "%table", calls="widens")
    named = fusion + ', metadata={op_name="jit(step)/dequantize"}'
    (copy,) = _launches([*INPUTS, named], WIDENS).widest_copies
    assert copy.wider
    assert (copy.result, copy.bytes, copy.count) == ("f32[64,32]", 8192, 1)
    assert copy.source == "jit(step)/dequantize"


def test_elements_that_are_moved_are_a_copy_and_computed_ones_are_none():
    moved = f"%c = {TABLE} copy(%table)"
    (copy,) = _launches([*INPUTS, moved]).widest_copies
    assert not copy.wider
    assert copy.bytes == 4096
    assert _launches([*INPUTS, _fusion(ROWS, "%x", calls="adds")], ADD).widest_copies == ()


def test_the_copies_of_most_bytes_are_kept():
    moves = [f"%c.{i} = bf16[{i},32]{{1,0}} copy(%table)" for i in range(1, KEPT + 4)]
    kept = _launches([*INPUTS, *moves]).widest_copies
    assert [copy.bytes for copy in kept] == [64 * i for i in range(KEPT + 3, 3, -1)]
