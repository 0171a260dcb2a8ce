# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Policies, case by case. test_machine.py has the invariants."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dovetail_infer
from dovetail_infer.schedule.plan import Group, Limits
from dovetail_infer.schedule.scheduler import Scheduler
from dovetail_infer.schedule.sequence import Sequence

LIMITS = Limits(
    page_size=4, step_tokens=16, max_rows=3, max_length=32, groups=(Group(window=None, pages=100),)
)


def scheduler(**changes):
    return Scheduler(dataclasses.replace(LIMITS, **changes))


def add(engine, request_id, ids, *, outputs=4, **options):
    sequence = Sequence(
        request_id=request_id,
        ids=list(ids),
        prompt_length=len(ids),
        max_total=len(ids) + outputs,
        **options,
    )
    engine.add(sequence)
    return sequence


def step(engine):
    """Plans a step and gives its tokens at once. Returns (request, start, count) of each row."""
    plan = engine.plan()
    for row in plan.rows:
        if row.samples:
            engine.sampled(row.request_id, 1)
    return [(row.request_id, row.start, row.count) for row in plan.rows]


def one_group(pages):
    return (Group(window=None, pages=pages),)


def test_decoding_comes_first_then_running_prefills_then_admissions():
    engine = scheduler(step_tokens=8)
    add(engine, 0, range(2))
    assert step(engine) == [(0, 0, 2)]
    add(engine, 1, range(100, 112))
    add(engine, 2, range(200, 203))
    assert step(engine) == [(0, 2, 1), (1, 0, 7)]
    assert step(engine) == [(0, 3, 1), (1, 7, 5), (2, 0, 2)]
    assert step(engine) == [(0, 4, 1), (1, 12, 1), (2, 2, 1)]


def test_no_request_overtakes_one_that_does_not_fit():
    engine = scheduler(groups=one_group(8))
    add(engine, 0, range(16), outputs=8)
    assert step(engine) == [(0, 0, 16)]
    add(engine, 1, range(100, 120))
    add(engine, 2, [7])
    assert step(engine) == [(0, 16, 1)]
    engine.finish(0)
    assert step(engine) == [(1, 0, 16)]


def test_pages_of_running_prefills_are_not_given_away():
    engine = scheduler(groups=one_group(8), step_tokens=8)
    add(engine, 0, range(24))
    add(engine, 1, range(100, 112))
    assert step(engine) == [(0, 0, 8)]
    assert step(engine) == [(0, 8, 8)]
    assert step(engine) == [(0, 16, 8)]


def test_the_last_block_of_a_prefix_is_evicted_first():
    engine = scheduler(groups=one_group(8))
    add(engine, 0, range(13))
    step(engine)
    engine.finish(0)
    add(engine, 1, range(100, 124), outputs=1)
    step(engine)
    step(engine)
    engine.finish(1)
    add(engine, 2, range(13))
    assert step(engine) == [(2, 8, 5)]


def test_an_older_request_takes_the_pages_of_the_youngest():
    engine = scheduler(groups=one_group(9), prefix_cache=False)
    for i in range(3):
        add(engine, i, [i] * 4, outputs=20)
    add(engine, 3, [3])
    for _ in range(9):
        assert [row[0] for row in step(engine)] == [0, 1, 2]
    # Three pages each are full: 0 takes a page, 2 gives up its three.
    plan = engine.plan()
    assert plan.preempted == (2,)
    assert [row.request_id for row in plan.rows] == [0, 1]
    assert (engine.running, engine.waiting, engine.counters.preemptions) == (2, 2, 1)
    for row in plan.rows:
        engine.sampled(row.request_id, 1)
    engine.finish(0)
    # All 13 tokens of 2 again, before the first of 3, which came later.
    assert step(engine) == [(1, 13, 1), (2, 0, 13), (3, 0, 1)]


def test_the_youngest_skips_a_step_and_keeps_its_pages_if_there_are_none_for_it():
    engine = scheduler(groups=one_group(8), prefix_cache=False)
    add(engine, 0, [0] * 13, outputs=8)
    youngest = add(engine, 1, [1] * 15, outputs=8)
    assert step(engine) == [(0, 0, 13), (1, 0, 3)]
    assert step(engine) == [(0, 13, 1), (1, 3, 12)]
    assert step(engine) == [(0, 14, 1), (1, 15, 1)]
    plan = engine.plan()
    assert [row.request_id for row in plan.rows] == [0]
    assert plan.preempted == ()
    assert youngest.computed == 16
    assert engine.pages() == ((8, 0, 0),)
    engine.sampled(0, 1)
    plan = engine.plan()  # now the older one needs a page
    assert [row.request_id for row in plan.rows] == [0]
    assert plan.preempted == (1,)


def test_a_preempted_request_waits_for_its_draw():
    engine = scheduler(groups=one_group(8), prefix_cache=False)
    add(engine, 0, [0] * 8, outputs=20)
    victim = add(engine, 1, [1] * 8, outputs=20)
    for _ in range(8):
        step(engine)
    assert [row.request_id for row in engine.plan().rows] == [0, 1]
    engine.sampled(0, 1)
    while not (plan := engine.plan()).preempted:
        for row in plan.rows:
            engine.sampled(row.request_id, 1)
        engine.sampled(1, 1)
    assert plan.preempted == (1,)
    assert (victim.pending, victim.computed, victim.slot) == (1, 0, None)
    engine.finish(0)
    assert engine.plan() is None
    known = len(victim.ids)
    assert engine.sampled(1, 5)
    assert victim.ids[known:] == [5]
    assert step(engine) == [(1, 0, 16)]


def test_equal_prompts_start_at_the_pages_of_the_first():
    engine = scheduler()
    add(engine, 0, range(13))
    assert step(engine) == [(0, 0, 13)]
    twin = add(engine, 1, range(13))
    full = add(engine, 2, range(12))
    assert step(engine) == [(0, 13, 1), (1, 12, 1), (2, 8, 4)]
    assert (twin.cached, full.cached) == (12, 8), "the last token is always computed"
    assert engine.counters.cached_tokens == 20
    assert engine.counters.prompt_tokens == 38
    np.testing.assert_array_equal(engine.tables[0, :2, :3], [engine.tables[0, twin.slot, :3]] * 2)


def test_a_duplicate_waits_for_the_blocks_that_a_running_request_computes():
    engine = scheduler(step_tokens=8)
    add(engine, 0, range(18))
    assert step(engine) == [(0, 0, 8)]
    add(engine, 1, range(18))
    stranger = add(engine, 2, range(50, 53))
    assert step(engine) == [(0, 8, 8)]
    # The stranger overtakes the duplicate, which waited for the last full block.
    assert step(engine) == [(0, 16, 2), (1, 16, 2), (2, 0, 3)]
    assert stranger.slot is not None


def test_a_stranger_overtakes_a_duplicate():
    engine = scheduler(step_tokens=8)
    add(engine, 0, [5])
    step(engine)
    add(engine, 1, range(6))
    add(engine, 2, range(6))
    add(engine, 3, [9])
    assert step(engine) == [(0, 1, 1), (1, 0, 6), (3, 0, 1)]
    engine.finish(0)
    assert step(engine) == [(1, 6, 1), (3, 1, 1), (2, 4, 2)]


def test_a_duplicate_does_not_wait_for_an_aborted_request():
    engine = scheduler(step_tokens=8)
    add(engine, 0, range(18))
    step(engine)
    add(engine, 1, range(18))
    engine.finish(0)
    assert step(engine) == [(1, 8, 8)]


def test_a_duplicate_does_not_wait_for_what_is_cached():
    engine = scheduler()
    add(engine, 0, range(7))
    step(engine)
    add(engine, 1, range(7), read_prefix=False)
    add(engine, 2, range(7))
    assert step(engine) == [(0, 7, 1), (1, 0, 7), (2, 4, 3)]


def test_outputs_are_found_too_also_when_results_come_a_step_late():
    for late in (False, True):
        engine = scheduler()
        sequence = add(engine, 0, range(5), outputs=8)
        before = None
        while (plan := engine.plan()) is not None:
            for done in (before if late else plan,):
                if done is not None:
                    engine.sampled(0, 7)
            before = plan
        while sequence.pending:
            engine.sampled(0, 7)
        assert sequence.ids == [*range(5), *[7] * 8]
        engine.finish(0)
        add(engine, 1, sequence.ids)
        assert step(engine) == [(1, 12, 1)]


def test_a_request_that_reads_no_prefix_computes_all_and_shares_its_pages():
    engine = scheduler()
    add(engine, 0, range(9))
    step(engine)
    add(engine, 1, range(9), read_prefix=False)
    assert step(engine) == [(0, 9, 1), (1, 0, 9)]
    engine.drop_cache()
    engine = scheduler()
    add(engine, 0, range(9), read_prefix=False)
    step(engine)
    add(engine, 1, range(9))
    assert step(engine) == [(0, 9, 1), (1, 8, 1)]


def test_a_request_without_output_reads_its_prompt_and_draws_nothing():
    engine = scheduler()
    add(engine, 0, range(5), outputs=0)
    [row] = engine.plan().rows
    assert (row.count, row.samples) == (5, False)
    assert engine.plan() is None
    assert engine.finish(0)


def test_pages_behind_the_window_are_released_and_still_found():
    groups = (Group(window=None, pages=20), Group(window=5, pages=12))
    engine = scheduler(groups=groups, max_length=40)
    sequence = add(engine, 0, range(16), outputs=20)
    step(engine)
    assert engine.pages()[1].used == 4
    step(engine)
    # Position 16 sees 12 to 16: blocks 3 and 4 of five.
    assert engine.pages() == ((5, 0, 15), (2, 3, 7))
    assert not engine.tables[1, sequence.slot, :3].any()
    assert engine.tables[1, sequence.slot, 3:5].all() or 0 in sequence.pages[1]
    add(engine, 1, range(9))
    assert step(engine)[1] == (1, 8, 1)
    assert engine.pages()[1].used == 4


def test_draws_of_finished_and_reset_requests_are_ignored():
    engine = scheduler()
    sequence = add(engine, 0, range(5))
    engine.plan()
    engine.reset([0])
    assert not engine.sampled(0, 3)
    assert sequence.ids == list(range(5))
    assert (engine.running, engine.waiting) == (0, 1)
    engine.plan()
    assert engine.finish(0)
    assert not engine.sampled(0, 3)
    assert not engine.finish(0)


def test_reset_requests_wait_at_the_front_by_arrival():
    engine = scheduler(prefix_cache=False)
    for i in range(4):
        add(engine, i, [i])
    step(engine)
    engine.reset([2, 0])
    assert step(engine) == [(1, 1, 1), (0, 0, 2), (2, 0, 2)]
    engine.reset()
    assert engine.running == 0
    assert step(engine) == [(0, 0, 3), (1, 0, 3), (2, 0, 3)]


def test_a_lower_priority_number_runs_earlier():
    engine = scheduler(max_rows=1)
    for i, priority in enumerate([5, 0, -1, 0]):
        add(engine, i, [i], outputs=1, priority=priority)
    order = []
    while (plan := engine.plan()) is not None:
        [row] = plan.rows
        order.append(row.request_id)
        engine.sampled(row.request_id, 1)
        engine.finish(row.request_id)
    assert order == [2, 1, 3, 0]


def test_the_largest_priority_number_loses_its_pages_first():
    engine = scheduler(groups=one_group(9), prefix_cache=False)
    for i, priority in enumerate([0, 2, 1]):
        add(engine, i, [i] * 4, outputs=20, priority=priority)
    for _ in range(9):
        assert sorted(row[0] for row in step(engine)) == [0, 1, 2]
    plan = engine.plan()
    assert plan.preempted == (1,)
    assert [row.request_id for row in plan.rows] == [0, 2]


def test_a_waiting_request_takes_one_row_a_step_from_larger_numbers_alone():
    engine = scheduler(prefix_cache=False)
    for i, priority in enumerate([1, 0, 1]):
        add(engine, i, [i], outputs=9, priority=priority)
    assert step(engine) == [(1, 0, 1), (0, 0, 1), (2, 0, 1)]
    for i in (3, 4, 5):
        add(engine, i, [i], outputs=9)
    plan = engine.plan()
    assert plan.preempted == (2,)
    assert [row.request_id for row in plan.rows] == [1, 0, 3]
    for row in plan.rows:
        engine.sampled(row.request_id, 1)
    plan = engine.plan()
    assert plan.preempted == (0,)
    assert [row.request_id for row in plan.rows] == [1, 3, 4]
    for row in plan.rows:
        engine.sampled(row.request_id, 1)
    assert engine.plan().preempted == (), "5 is not before 1, 3 and 4"


def test_a_waiting_request_takes_pages_too_and_no_more_than_it_needs():
    engine = scheduler(groups=one_group(8), prefix_cache=False)
    add(engine, 0, [0] * 11, priority=1)  # three pages
    add(engine, 1, [1] * 5, priority=1)  # two
    assert step(engine) == [(0, 0, 11), (1, 0, 5)]
    add(engine, 2, [2] * 15, outputs=1)  # four: one of 1's is missing
    plan = engine.plan()
    assert plan.preempted == (1,)
    assert [(row.request_id, row.count) for row in plan.rows] == [(0, 1), (2, 15)]


def test_prefill_beside_decoding_rows_is_capped_and_alone_it_is_not():
    engine = scheduler(prefill_tokens=5)
    add(engine, 0, range(3), outputs=20)
    assert step(engine) == [(0, 0, 3)]
    add(engine, 1, range(100, 112))
    add(engine, 2, range(200, 216))
    assert step(engine) == [(0, 3, 1), (1, 0, 5)]
    assert step(engine) == [(0, 4, 1), (1, 5, 5)]
    assert step(engine) == [(0, 5, 1), (1, 10, 2), (2, 0, 3)]
    engine.finish(0)
    engine.finish(1)
    assert step(engine) == [(2, 3, 13)]


def test_the_last_token_of_a_prompt_counts_in_the_cap():
    engine = scheduler(prefill_tokens=5, step_tokens=8)
    add(engine, 0, range(3), outputs=20)
    step(engine)
    add(engine, 1, range(100, 106))
    add(engine, 2, range(200, 216))
    assert step(engine) == [(0, 3, 1), (1, 0, 5)]
    assert step(engine) == [(0, 4, 1), (1, 5, 1), (2, 0, 4)]


def test_bad_requests_are_refused():
    engine = scheduler()
    add(engine, 3, [1])
    with pytest.raises(
        ValueError, match="one request at a time, got request_id=3 again; pass a new"
    ):
        add(engine, 3, [1])
    with pytest.raises(ValueError, match="max_total=33, max_length=32; pass a shorter prompt"):
        add(engine, 4, range(29))
    with pytest.raises(ValueError, match="prefill_tokens=0; pass prefill_tokens=1 or more"):
        scheduler(prefill_tokens=0)
    with pytest.raises(ValueError, match="got pages=1 with window=None; pass pages=8 or more"):
        scheduler(groups=one_group(1))


def test_the_schedule_imports_no_jax():
    # Under a package of the same name, without its __init__, which needs JAX for its annotations.
    folder = Path(dovetail_infer.__file__).parent
    program = (
        "import sys, types; package = types.ModuleType('dovetail_infer'); "
        f"package.__path__ = [{str(folder)!r}]; sys.modules['dovetail_infer'] = package; "
        "import dovetail_infer.schedule.simulate, dovetail_infer.schedule.replay; "
        "assert 'dovetail_infer.schedule.scheduler' in sys.modules; "
        "assert not {'jax', 'jaxlib', 'flax'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
