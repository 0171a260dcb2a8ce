# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The cause of a failure, and the budgets, as tables."""

import pytest

from dovetail_cluster import Elastic, JobError, RankError, StallError
from dovetail_cluster.control.policy import Failing, Failure, Policy
from dovetail_cluster.events import Raised

LOST = ("rank 2 on c", "no word for 10 s")
KILLED = ("rank 1 on b", -9)
CUT = "UNKNOWN: Gloo all-reduce failed: pair.cc:547] Connection closed by peer [10.0.0.4]:2530"
LATE = "UNKNOWN: Gloo context initialization failed: Connect timeout"
WRONG = "UNKNOWN: Gloo all-reduce failed: op.preamble.length <= op.nbytes. 800 vs 400"
QUIT = ("rank 1 on b", 3)
ABORTED = ("rank 0 on a", -6)
BROKEN = (("JaxRuntimeError", "UNAVAILABLE: Barrier failed; a task is gone"),)


def failing(rank=0, step=7, message="bad batch", kind="ValueError", generation=0, before=()):
    raised = Raised(3, generation, kind, message, f"Traceback of {message}", None, before)
    return Failing(rank, step, raised)


CLEANED = failing(1, message=CUT, kind="JaxRuntimeError", before=(("KeyError", "'x'"),))
TOLD = failing(message="every process must succeed, got process=1 with OSError(28, 'full')")


def failure(generation=0, **reasons):
    return Failure(generation, **reasons)


@pytest.mark.parametrize(
    "reasons, cause, text",
    (
        ({"lost": [LOST]}, "crash", "rank 2 on c was lost: no word for 10 s"),
        (
            {"exits": [KILLED]},
            "crash",
            "rank 1 on b was killed by signal 9 (SIGKILL)",
        ),
        (
            {"exits": [QUIT]},
            "crash",
            "rank 1 on b exited with code 3 without a result",
        ),
        ({"report": "The job is stuck.\nrank 0"}, "stall", "The job is stuck."),
        ({"raised": [failing()]}, "exception", "rank 0 raised ValueError: bad batch"),
        # By origin: an exception of its own, then an exit code, then a signal. JAX aborts a rank
        # because of another's end.
        ({"raised": [failing()], "exits": [KILLED]}, "exception", "rank 0 raised ValueError"),
        ({"raised": [failing(1)], "exits": [ABORTED]}, "exception", "rank 1 raised ValueError"),
        ({"raised": [failing(message=CUT)], "exits": [QUIT]}, "crash", "rank 1 on b exited with"),
        ({"raised": [failing(message=CUT)], "exits": [KILLED]}, "crash", "rank 1 on b was killed"),
        ({"exits": [ABORTED, KILLED]}, "crash", "rank 1 on b was killed by signal 9"),
        ({"exits": [ABORTED, KILLED, QUIT]}, "crash", "rank 1 on b exited with code 3"),
        ({"exits": [ABORTED]}, "crash", "rank 0 on a was killed by signal 6 (SIGABRT)"),
        ({"raised": [failing(message=CUT)], "exits": [ABORTED]}, "crash", "rank 0 raised"),
        ({"raised": [failing(kind="Wrapped", before=BROKEN), failing(1)]}, "exception", "rank 1 r"),
        ({"raised": [failing(before=BROKEN)], "exits": [QUIT]}, "crash", "rank 1 on b exited"),
        # A clean-up that asked the others after the exception, and an error about another rank.
        ({"raised": [failing(message=CUT), CLEANED]}, "exception", "rank 1 raised KeyError: 'x'"),
        ({"raised": [CLEANED], "exits": [QUIT]}, "crash", "rank 1 on b exited with code 3"),
        ({"raised": [TOLD, failing(1, message="full")]}, "exception", "rank 1 raised ValueError"),
        ({"raised": [TOLD]}, "exception", "rank 0 raised ValueError"),
        # A stall is no consequence, and what comes after it is its consequence.
        ({"report": "Stuck.", "exits": [ABORTED]}, "stall", "Stuck."),
        ({"raised": [failing()], "lost": [LOST]}, "crash", "rank 2 on c was lost"),
        ({"report": "Stuck.", "lost": [LOST]}, "crash", "rank 2 on c was lost"),
        ({"report": "Stuck.", "raised": [failing()]}, "stall", "Stuck."),
        ({"raised": [failing()], "exits": [QUIT]}, "exception", "rank 0 raised ValueError"),
        # A broken connection is the network's, if no rank has another reason.
        ({"raised": [failing(message=CUT), failing(1, message=LATE)]}, "crash", "rank 0 raised"),
        ({"raised": [failing(message=CUT), failing(1)]}, "exception", "rank 1 raised"),
        ({"raised": [failing(message=WRONG), failing(message=CUT)]}, "exception", "rank 0 raised"),
        ({"raised": [failing(message="no connection to the table")]}, "exception", "rank 0 rais"),
        ({"exits": [("rank 0", -63)]}, "crash", "rank 0 was killed by signal 63"),
    ),
)
def test_cause(reasons, cause, text):
    assert failure(**reasons).cause == cause
    assert str(failure(**reasons)).startswith(text)


CRASH = {"exits": [KILLED]}
STALL = {"report": "The job is stuck."}


@pytest.mark.capability("restart budgets by cause")
@pytest.mark.parametrize(
    "budget, story, restarts",
    (
        ({}, [CRASH] * 9, 5),
        ({}, [STALL] * 9, 3),
        ({"crash": 0}, [CRASH], 0),
        ({"crash": 2}, [CRASH, STALL, CRASH, STALL, CRASH], 4),  # each cause has its own
        ({"crash": 2}, [CRASH, CRASH, 1, CRASH, CRASH, CRASH], 4),  # step 1 fills the budget
        ({"crash": 2}, [5, CRASH, CRASH, 5, 3, CRASH], 2),  # steps that were done before do not
        ({"crash": 1}, [0, CRASH, 1, CRASH, 2, CRASH, 3, CRASH, 3, CRASH], 4),
    ),
)
def test_budget(budget, story, restarts):
    policy, count = Policy(Elastic(budget=budget)), 0
    for happening in story:
        if isinstance(happening, int):
            policy.completed(happening)
            continue
        error = policy.decide(failure(**happening))
        if error is not None:
            assert isinstance(error, JobError)
            break
        count += 1
        cause = failure(**happening).cause
        assert policy.restarts_left(cause) >= 0
    assert count == restarts


def test_errors_say_what_to_write():
    reasons = {"exits": [KILLED], "raised": [failing(message=CUT)]}
    crash = Policy(Elastic(budget={"crash": 0})).decide(failure(**reasons))
    assert type(crash) is JobError
    assert str(crash) == (
        "a job may restart 0 times after a crash without a step later than all before, and this "
        "was failure 1: rank 1 on b was killed by signal 9 (SIGKILL); write "
        f"budget={{'crash': 1}} for more\nrank 0 raised:\nTraceback of {CUT}"
    )
    stall = Policy(Elastic(budget={"stall": 0})).decide(failure(report="The job is stuck.\nall"))
    assert type(stall) is StallError
    assert str(stall).endswith("write budget={'stall': 1} for more\nThe job is stuck.\nall")


def test_an_exception_beyond_the_budget_names_its_rank():
    policy = Policy(Elastic(budget={"exception": 0}))
    error = policy.decide(failure(4, raised=[failing(2, 7, generation=4)]))
    assert isinstance(error, RankError)
    assert (error.rank, error.generation) == (2, 4)
    assert str(error) == (
        "rank 2 raised ValueError after step 7 in generation 4, its budget of 0 restarts is used "
        "up: bad batch\nTraceback of bad batch"
    )
    before = Policy(Elastic(budget={"exception": 0})).decide(failure(raised=[failing(step=None)]))
    assert "rank 0 raised ValueError before its first step in generation 0" in str(before)


@pytest.mark.capability("the same exception twice ends a job")
@pytest.mark.parametrize(
    "second, stops",
    (
        ({"raised": [failing()]}, True),
        ({"raised": [failing(rank=2)]}, True),  # any rank
        ({"raised": [failing(message="lost peer"), failing()]}, True),
        ({"raised": [failing(step=8)]}, False),
        ({"raised": [failing(message="another")]}, False),
        ({"raised": [failing(kind="KeyError")]}, False),
        ({"raised": [failing()], "lost": [LOST]}, False),  # the consequence of a death
    ),
)
def test_the_same_exception_at_the_same_step(second, stops):
    policy = Policy(Elastic(budget={"exception": 9}))
    assert policy.decide(failure(raised=[failing()])) is None
    policy.completed(100)
    error = policy.decide(failure(1, **second))
    assert (error is not None) == stops
    if stops:
        assert "the same exception as in the generation before: bad batch" in str(error)


def test_the_same_exception_with_a_crash_between():
    policy = Policy(Elastic(budget={"exception": 9}))
    assert policy.decide(failure(raised=[failing()])) is None
    assert policy.decide(failure(**CRASH)) is None
    assert policy.decide(failure(raised=[failing()])) is None


def test_an_exception_that_another_start_would_raise_again_ends_the_job():
    reasons = {"raised": [failing(message=CUT), final := failing(1)]}
    reasons["raised"][1] = Failing(1, None, final.raised._replace(final=True))
    error = Policy(Elastic(budget={"exception": 9})).decide(failure(**reasons))
    assert isinstance(error, RankError)
    assert "generation 0, which another start would raise again: bad batch" in str(error)


@pytest.mark.capability("a full disk ends a job at once")
@pytest.mark.parametrize(
    "message, before",
    (
        ("step 5 must be written whole, got OSError(28, 'No space left on device')", ()),
        ("step 5 must be written whole", (("OSError", "[Errno 122] Disk quota exceeded"),)),
        ("CreateFile failed: File too large [OS error 27]", ()),
    ),
)
def test_a_full_disk_has_no_second_generation(message, before):
    reasons = {"raised": [TOLD, failing(1, message=message, before=before)]}
    error = Policy(Elastic(budget={"exception": 9})).decide(failure(**reasons))
    assert isinstance(error, RankError)
    assert (error.rank, error.generation) == (1, 0)
    assert "which no restart mends: free space on its disk" in str(error)
