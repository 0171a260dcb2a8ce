# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Texts as XLA writes them, shortened, with what must be counted by hand."""

import numpy as np
import pytest

from dovetail_cluster.absent.count import Call, Text, Traffic, traffic

PAIRS = ((0, 1), (2, 3))


def _module(entry, *computations):
    lines = [
        "HloModule jit_step, num_partitions=4",
        *computations,
        "ENTRY %main (p: f32[2]) -> f32[2] {",
    ]
    return "\n".join([*lines, *(f"  {line}" for line in entry), "}", ""])


def _computation(name, *lines):
    return "\n".join([f"%{name} (p: f32[2]) -> f32[2] {{", *(f"  {line}" for line in lines), "}"])


def _collectives(*module):
    return Text(_module(*module)).collectives()


REDUCE = "%all-reduce.1 = f32[2,3]{1,0} all-reduce(%p), replica_groups=[2,2]<=[4], to_apply=%add"
BODY = _computation("body", REDUCE, "ROOT %tuple = (s32[], f32[2,3]{1,0}) tuple(%i, %all-reduce.1)")


def _condition(limit, *, name="condition", fused=False, short=False):
    counter = "%q#0" if short else "%counter"
    compare = f"compare({counter}, %limit), direction=LT"
    lines = [
        f"%limit = s32[]{{:T(128)}} constant({limit})",
        "%q = (s32[]{:T(128)}, f32[2,3]{1,0:T(8,128)(2,1)}) parameter(0)",
        *([] if short else ["%counter = s32[]{:T(128)} get-tuple-element(%q), index=0"]),
        "ROOT %less = pred[] " + (f"fusion({counter}, %limit), calls=%less" if fused else compare),
    ]
    inner = _computation("less", "ROOT %c = pred[] compare(%a, %b), direction=LT")
    return "\n".join([inner, _computation(name, *lines)])


def _loop(start, *, condition="condition", body="body", rest=""):
    return [
        f"%start = s32[]{{:T(128)}} constant({start})",
        "%copy = s32[]{:T(128)} copy(%start)",
        "%init = (s32[]{:T(128)}, /*index=1*/f32[2,3]{1,0:T(8,128)(2,1)}) tuple(%copy, %p)",
        f"%while = (s32[]{{:T(128)}}, f32[2,3]{{1,0:T(8,128)}}) while(%init), "
        f"condition=%{condition}, body=%{body}{rest}",
    ]


def test_a_collective_has_kind_bytes_and_groups():
    assert _collectives([REDUCE]) == [Call("all-reduce", 1, 24, PAIRS, ())]


def test_a_loop_says_how_often_it_runs():
    rest = ', backend_config={"known_trip_count":{"n":"7"},"known_init_step":{"init":"0"}}'
    assert _collectives(_loop(0, rest=rest), BODY) == [Call("all-reduce", 7, 24, PAIRS, ())]


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("start, rounds", [(0, 6), (1, 5), (9, 0)])
def test_rounds_are_read_off_the_condition_of_a_loop(start, rounds, fused, short):
    """XLA:TPU peels rounds off: a counter then starts above 0."""
    text = Text(_module(_loop(start), BODY, _condition(6, fused=fused, short=short)))
    calls = text.collectives()
    assert [call.times for call in calls] == ([rounds] if rounds else [])
    assert text.unknown_loops == 0


def test_loops_within_loops_multiply():
    outer = _computation("outer", *_loop(0))
    entry = _loop(0, condition="more", body="outer")
    computations = BODY, _condition(6), outer, _condition(5, name="more")
    assert [call.times for call in _collectives(entry, *computations)] == [30]


def test_a_loop_of_unknown_length_counts_once_and_is_told():
    condition = _computation("condition", "ROOT %less = pred[] compare(%a, %b), direction=LT")
    text = Text(_module(_loop(0), BODY, condition))
    assert [call.times for call in text.collectives()] == [1]
    assert text.unknown_loops == 1


def test_a_loop_of_unknown_length_without_collectives_does_not_matter():
    body = _computation("body", "ROOT %x = f32[2]{0} add(%p, %p)")
    text = Text(_module(_loop(0), body, _computation("condition", "ROOT %l = pred[] custom(%a)")))
    assert (text.collectives(), text.unknown_loops) == ([], 0)


def test_computations_that_are_called_count_where_they_are():
    branch = _computation("branch", REDUCE)
    entry = [
        "%x = f32[2]{0} call(%p), to_apply=%branch",
        "%y = f32[2]{0} conditional(%i, %p, %p), branch_computations={%branch, %other}",
        "%z = f32[2]{0} conditional(%i, %p), true_computation=%branch, false_computation=%other",
    ]
    assert [call.times for call in _collectives(entry, branch)] == [3]


def test_code_that_nothing_calls_does_not_count():
    assert _collectives(["%x = f32[2]{0} add(%p, %p)"], _computation("dead", REDUCE)) == []


@pytest.mark.parametrize(
    "line, kind, size",
    [
        (
            "%s = (f32[2]{0}, f32[8]{0}) all-gather-start(%p), replica_groups={{0,1,2,3}}",
            "all-gather",
            32,
        ),
        (
            "%s = ((f32[8]{0}, bf16[4]{0}), (f32[2]{0}, bf16[1]{0})) reduce-scatter-start(%p, %q), "
            "replica_groups={}",
            "reduce-scatter",
            10,
        ),
        (
            "%s = (f32[2]{0}, f32[3]{0}) all-reduce-start(%p, %q), replica_groups={}",
            "all-reduce",
            20,
        ),
        (
            "%s = (f32[2]{0:T(256)}, f32[2]{0}, u32[]{:S(2)}, u32[]) collective-permute-start(%p), "
            "source_target_pairs={{0,1},{1,0}}",
            "collective-permute",
            8,
        ),
        ("%s = (s4[6]{0}, pred[3]{0}) all-to-all(%p, %q), replica_groups={}", "all-to-all", 6),
    ],
)
def test_the_start_of_an_asynchronous_collective_counts_with_its_results(line, kind, size):
    done = "%done = f32[8]{0} all-gather-done(%s)"
    [call] = _collectives([line, done])
    assert (call.kind, call.times, call.result_bytes) == (kind, 1, size)


def test_a_wrapped_collective_counts_at_its_start_alone():
    wrapped = _computation("wrapped", REDUCE)
    entry = [
        f"%{op} = f32[2]{{0}} async-{op}(%p), calls=%wrapped" for op in ("start", "update", "done")
    ]
    assert [call.times for call in _collectives(entry, wrapped)] == [1]


def test_fusions_that_overlap_with_one_collective_of_a_tpu_count_it_once():
    gather = "%g{} = f32[8]{{0}} all-gather(%p), channel_id={}, replica_groups={{}}"
    computations = [
        _computation(
            "begin",
            gather.format(0, 6),
            "ROOT %c = (f32[2]{0}, f32[8]{0}) custom-call(%g0), "
            'custom_call_target="AsyncCollectiveStart"',
        ),
        _computation("between", gather.format(1, 6), "ROOT %t = (f32[8]{0}) tuple(%g1)"),
        _computation(
            "end",
            gather.format(2, 6),
            'ROOT %c = f32[8]{0} custom-call(%g2), custom_call_target="AsyncCollectiveDone"',
        ),
        _computation("other", gather.format(3, 7)),
    ]
    entry = [
        f"%{name}.f = f32[8]{{0}} fusion(%p), kind=kCustom, calls=%{name}"
        for name in ("begin", "between", "end", "other")
    ]
    calls = _collectives(entry, *computations)
    assert [(call.kind, call.times, call.result_bytes) for call in calls] == [
        ("all-gather", 1, 32),
        ("all-gather", 1, 32),
    ]


def test_an_all_reduce_of_which_a_part_is_kept_is_a_reduce_scatter():
    fused = _computation(
        "all-reduce-scatter",
        "%r = bf16[8,4]{1,0:T(8,128)(2,1)} all-reduce(%p), replica_groups=[2,2]<=[4]",
        "ROOT %d = bf16[2,4]{1,0} dynamic-slice(%r, %i, %j), dynamic_slice_sizes={2,4}",
    )
    entry = ["%f = bf16[2,4]{1,0} fusion(%p), kind=kCustom, calls=%all-reduce-scatter"]
    assert _collectives(entry, fused) == [Call("reduce-scatter", 1, 16, PAIRS, ())]


def test_transfers_between_slices_are_collectives():
    common = (
        'channel_id=1, is_host_transfer=true, frontend_attributes={_xla_megascale_target="{1,2}x'
        '{0:3}",_xla_megascale_transfer_type="ALL_GATHER"}'
    )
    entry = [
        f"%send = (f32[2]{{0}}, u32[]{{:S(2)}}, token[]) send(%p, %t), {common}",
        f"%recv = (f32[4]{{0:T(128)}}, u32[]{{:S(2)}}, token[]) recv(%t), {common}",
        "%recv-done = (f32[4]{0}, token[]) recv-done(%recv), channel_id=1",
        "%local = (f32[4]{0}, u32[], token[]) recv(%t), channel_id=2",
    ]
    assert _collectives(entry) == [Call("all-gather", 1, 16, (), (0, 1))]


SHAPE = {"data": 2, "fsdp": 1, "tensor": 4}


def _traffic(*calls, places=(0,) * 8, shape=SHAPE, local=False):
    return traffic(calls, shape, np.array(places), near="ici", local=local)


@pytest.mark.parametrize(
    "groups, axes",
    [
        (((0, 1, 2, 3), (4, 5, 6, 7)), ("tensor",)),
        (((0, 4), (1, 5), (2, 6), (3, 7)), ("data",)),
        ((tuple(range(8)),), ("data", "tensor")),
        (((0,), (1,), (2,), (3,), (4,), (5,), (6,), (7,)), ()),
        (((0, 5), (5, 0)), ("data", "tensor")),  # a permutation
    ],
)
def test_axes_are_those_along_which_the_devices_of_a_group_differ(groups, axes):
    call = Call("all-reduce", 3, 10, groups, ())
    expected = Traffic(count=3, bytes=30, axes=axes, link="ici", devices=len(groups[0]))
    assert _traffic(call) == {"all-reduce": (expected,)}


def test_equal_collectives_are_summed_and_the_most_bytes_come_first():
    data, tensor = ((0, 4), (1, 5), (2, 6), (3, 7)), ((0, 1, 2, 3), (4, 5, 6, 7))
    sums = _traffic(
        Call("all-reduce", 2, 10, data, ()),
        Call("all-reduce", 3, 100, tensor, ()),
        Call("all-reduce", 1, 5, data, ()),
        Call("all-gather", 1, 7, data, ()),
    )
    assert [(t.axes, t.count, t.bytes) for t in sums["all-reduce"]] == [
        (("tensor",), 3, 300),
        (("data",), 3, 25),
    ]
    assert sums["all-gather"][0].bytes == 7


def test_groups_with_devices_of_several_hosts_cross_the_network():
    hosts = (0,) * 4 + (1,) * 4
    sums = _traffic(
        Call("all-reduce", 1, 1, ((0, 4), (1, 5), (2, 6), (3, 7)), ()),
        Call("all-gather", 1, 1, ((0, 1, 2, 3), (4, 5, 6, 7)), ()),
        places=hosts,
    )
    assert (sums["all-reduce"][0].link, sums["all-gather"][0].link) == ("dcn", "ici")


def test_devices_of_slices_are_numbered_in_their_slice():
    """Slices lie along fsdp, the innermost axis but one: the first has tensor of both data."""
    shape = {"data": 2, "fsdp": 2, "tensor": 2}
    places = (0, 0, 1, 1, 0, 0, 1, 1)
    sums = _traffic(
        Call("all-gather", 1, 1, ((0, 2), (1, 3)), ()),
        Call("all-reduce", 1, 1, (), (0, 1)),
        places=places,
        shape=shape,
        local=True,
    )
    assert (sums["all-gather"][0].axes, sums["all-gather"][0].link) == (("data",), "ici")
    assert (sums["all-reduce"][0].axes, sums["all-reduce"][0].link) == (("fsdp",), "dcn")
    assert sums["all-reduce"][0].devices == 2


def test_without_a_mesh_there_are_no_axes():
    [entry] = _traffic(Call("all-reduce", 1, 1, ((0, 1),), ()), shape={})["all-reduce"]
    assert (entry.axes, entry.link) == ((), "ici")
