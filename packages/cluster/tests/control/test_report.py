# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The report on a stuck job names the culprit."""

import faulthandler
import tempfile

import pytest

from dovetail_cluster import Elastic
from dovetail_cluster.control.generation import Rank
from dovetail_cluster.control.report import culprits, innermost, lateness, report
from dovetail_cluster.events import Returned

ELASTIC = Elastic(stall_s=120.0)
NOW = 1000.0


def stack(*frames):
    lines = [f'  File "{file}", line {line} in {name}' for file, line, name in frames]
    other = 'Thread 0x00007f01 (most recent call first):\n  File "wire.py", line 9 in pump\n\n'
    return other + "\n".join(["Current thread 0x00007f02 (most recent call first):", *lines]) + "\n"


WAITING = stack(("array.py", 500, "_value"), ("train.py", 30, "train"))
SLEEPING = stack(("train.py", 41, "load"), ("train.py", 29, "train"))


def rank(i, step=17, asked=18, heard=999.5, stacks=WAITING, progressed=870.0, **more):
    return Rank(
        i,
        i + 4,
        "abc"[i],
        progressed_at=progressed,
        heard_at=heard,
        step=step,
        asked=asked,
        stacks=stacks,
        **more,
    )


def start(i, activity, begun, reached=910.0):
    """A rank before its first step."""
    place = {"activity": activity, "begun": begun, "reached_at": reached}
    return rank(i, step=None, asked=0, progressed=-800.0, **place)


def names(ranks):
    return [r.rank for r in culprits(ranks, NOW)[0]]


@pytest.mark.parametrize(
    "ranks, expected",
    (
        ([rank(0), rank(1, heard=880.0, stacks=None), rank(2)], [1]),
        ([rank(0), rank(1, step=16), rank(2, heard=None, step=None, asked=0)], [2]),  # silent
        ([rank(0), rank(1), rank(2, step=16)], [2]),
        ([rank(0), rank(1, step=None), rank(2)], [1]),
        ([start(0, "step", 4), start(1, "step", 4), start(2, "data", 2)], [2]),
        ([start(0, "restore", 2), start(1, "", 0)], [1]),
        ([rank(0, asked=17), rank(1), rank(2)], [0]),
        ([rank(0), rank(1, step=16), rank(2, asked=17)], [2]),  # rank 1 has read fewer results
        ([rank(0), rank(1, stacks=SLEEPING), rank(2)], [1]),
        ([rank(0), rank(1, stacks=SLEEPING)], []),  # no majority
        ([rank(0), rank(1, step=18), rank(2)], [1]),  # ahead
        ([rank(0), rank(1, step=18)], [0]),
        ([rank(0), rank(1, returned=Returned(5, 0, b"", False)), rank(2)], [1]),
        ([rank(i, returned=Returned(5, 0, b"", False)) for i in (0, 1)] + [rank(2)], [2]),
        ([rank(0, returned=Returned(4, 0, b"", False)), rank(1)], [1]),
        ([rank(0), rank(1)], []),
        # A rank that has returned is not behind, though it counts fewer steps.
        ([rank(0, step=3, returned=Returned(4, 0, b"", False)), rank(1), rank(2, step=16)], [2]),
    ),
)
def test_culprits(ranks, expected):
    assert names(ranks) == expected


@pytest.mark.capability("a report on a stuck job")
def test_report():
    ranks = [rank(0), rank(1, stacks=SLEEPING, phase="eval", phase_s=60.0), rank(2)]
    assert report(ranks, [ranks[1]], elastic=ELASTIC, now=NOW).splitlines() == [
        "The job is stuck: rank 1 on b completed no step for 130.0 s (stall_s=60 of phase 'eval').",
        "Suspected: rank 1 on b: at another line.",
        "rank 1 on b: step 17, asked 18 times, in phase 'eval', progress 130.0 s ago, "
        "heard 0.5 s ago",
        '    File "train.py", line 41 in load',
        '    File "train.py", line 29 in train',
        "rank 0 on a: step 17, asked 18 times, progress 130.0 s ago, heard 0.5 s ago",
        '    File "array.py", line 500 in _value',
        '    File "train.py", line 30 in train',
        "rank 2 on c: step 17, asked 18 times, progress 130.0 s ago, heard 0.5 s ago",
        '    File "array.py", line 500 in _value',
        '    File "train.py", line 30 in train',
    ]


@pytest.mark.parametrize(
    "more, heard, rule",
    (
        ({"phase": "save"}, 999.5, "first_step_s=1800 of phase 'save'"),
        ({"phase": "save"}, 879.0, "stall_s=120, for it shows no sign of life in phase 'save'"),
        ({"phase": "save", "step": None}, 999.5, "first_step_s=1800 of phase 'save'"),
        ({"phase": "eval", "phase_s": 60.0, "step": None}, 999.5, "stall_s=60 of phase 'eval'"),
    ),
)
def test_the_rule_of_a_phase(more, heard, rule):
    ranks = [rank(0, heard=heard, **more), rank(1, progressed=999.0)]
    text = report(ranks, ranks[:1], elastic=ELASTIC, now=NOW)
    assert text.splitlines()[0].endswith(f"for 130.0 s ({rule}).")


def test_the_headline_names_the_suspect():
    # Rank 0 waits the longest, for rank 1, which works on.
    ranks = [rank(0, progressed=800.0), rank(1, step=16, progressed=990.0), rank(2)]
    headline = report(ranks, [ranks[0]], elastic=ELASTIC, now=NOW).splitlines()[0]
    assert headline == (
        "The job is stuck: rank 1 on b is suspected, behind the others, which wait; "
        "rank 0 on a completed no step for 200.0 s (stall_s=120)."
    )
    ranks = [rank(0, progressed=800.0), rank(1, heard=870.0), rank(2)]
    headline = report(ranks, ranks, elastic=ELASTIC, now=NOW).splitlines()[0]
    assert headline == (
        "The job is stuck: rank 1 on b completed no step for 130.0 s (stall_s=120, for it shows "
        "no sign of life)."
    )


def test_the_rank_behind_comes_first():
    ranks = [rank(0), rank(1), rank(2, step=16)]
    lines = report(ranks, ranks, elastic=ELASTIC, now=NOW).splitlines()
    assert lines[1] == "Suspected: rank 2 on c: behind the others, which wait."
    assert lines[2].startswith("rank 2 on c: step 16, asked 18 times")


def test_a_stopped_process():
    ranks = [
        rank(0),
        rank(1, heard=880.0, stacks=None),
        rank(2, returned=Returned(6, 0, b"", False)),
    ]
    lines = report(ranks, ranks[:2], elastic=ELASTIC, now=NOW).splitlines()
    assert lines[1] == (
        "Suspected: rank 1 on b: no sign of life, the whole process is stopped or its "
        "host is cut off."
    )
    assert lines[2].endswith("heard 120.0 s ago")
    assert lines[3] == "    (no stack)"
    assert lines[-1] == "rank 2 on c: has returned, step 17, asked 18 times"


def test_a_function_without_questions_and_progress_is_told_so():
    ranks = [rank(i, step=None, asked=0, progressed=-800.0) for i in range(2)]
    lines = report(ranks, ranks, elastic=ELASTIC, now=NOW).splitlines()
    assert lines[0].endswith("completed no step for 1800.0 s (first_step_s=1800).")
    assert lines[1] == (
        "The function neither asks stop nor reports progress, so its steps cannot be seen. Call "
        "ctx.stop(step) and ctx.progress.write(step, scalars) in each step, or write a "
        "first_step_s larger than 1800."
    )
    assert lines[2] == "No rank stands out."
    assert "neither" not in report([rank(0)], [rank(0)], elastic=ELASTIC, now=NOW)


def test_a_rank_that_sleeps_before_its_first_step_is_told_with_its_activity():
    ranks = [start(0, "step", 4, 940.0), start(1, "step", 4, 930.0), start(2, "", 0)]
    assert lateness(ranks, ranks[2:], now=NOW) == (
        "rank 2 on c may keep the others waiting: no step, in its start for 90.0 s. The others "
        "are further, the last of them rank 0 on a: no step, in 'step' for 60.0 s."
    )
    lines = report(ranks, ranks, elastic=ELASTIC, now=NOW).splitlines()
    assert lines[0] == (
        "The job is stuck: rank 2 on c completed no step for 1800.0 s (first_step_s=1800)."
    )
    assert lines[1] == "Suspected: rank 2 on c: behind the others, which wait."
    assert lines[2].startswith("rank 2 on c: no step, in its start for 90.0 s, asked 0 times")


def test_a_line_about_late_ranks_names_four_of_them():
    ranks = [rank(i % 3, step=None) for i in range(7)]
    ranks[6].begun = 1
    text = lateness(ranks, ranks[:6], now=NOW)
    assert text.startswith("rank 0 on a, rank 1 on b, rank 2 on c, rank 0 on a and 2 more may keep")


def test_innermost_frames_of_a_real_dump():
    def inner():
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            return file.read()

    frames = innermost(inner())
    assert 2 <= len(frames) <= 6
    assert frames[0].endswith("in inner")
    assert frames[1].endswith("in test_innermost_frames_of_a_real_dump")


def test_innermost_without_a_current_thread_takes_the_last():
    assert innermost(WAITING.replace("Current thread", "Thread")) == innermost(WAITING)
    assert innermost("") == ()
