# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import dataclasses

import pytest

from dovetail_infer.schedule.plan import Group, Limits, Plan, Row

LIMITS = Limits(
    page_size=4,
    step_tokens=10,
    max_rows=2,
    max_length=30,
    groups=(Group(window=None, pages=8), Group(window=5, pages=5)),
)


@pytest.mark.parametrize(
    "window, step_tokens, pages", [(None, 10, 8), (5, 10, 5), (5, 3, 3), (99, 1, 8)]
)
def test_pages_of_one_request_are_those_of_its_length_or_of_window_and_step(
    window, step_tokens, pages
):
    assert dataclasses.replace(LIMITS, step_tokens=step_tokens).least_pages(window) == pages


def test_limits_hold_one_request():
    LIMITS.check()


@pytest.mark.parametrize(
    "change, message",
    [
        ({"page_size": 0}, r"page_size must be at least 1, got page_size=0; pass page_size=1"),
        ({"max_rows": -1}, r"max_rows must be at least 1, got max_rows=-1; pass max_rows=1"),
        (
            {"groups": (Group(window=None, pages=7),)},
            r"max_length=30, got pages=7 with window=None; pass pages=8 or more",
        ),
        (
            {"groups": (Group(window=None, pages=8), Group(window=5, pages=4))},
            r"max_length=30, got pages=4 with window=5; pass pages=5 or more",
        ),
    ],
)
def test_limits_that_no_request_fits_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(LIMITS, **change).check()


@pytest.mark.parametrize(
    "rows, phase",
    [
        ([(3, False), (1, True)], "prefill"),
        ([(1, False), (1, False)], "decode"),
        ([(1, False), (1, True)], "mixed"),
    ],
)
def test_the_phase_of_a_step(rows, phase):
    given = {"request_id": 1, "slot": 0, "start": 4, "samples": True}
    assert Plan(rows=tuple(Row(count=c, admitted=a, **given) for c, a in rows)).phase == phase


def test_tokens_of_a_plan_are_those_of_its_rows():
    row = Row(request_id=1, slot=0, start=0, count=3, samples=False, admitted=True)
    assert Plan(rows=(row, dataclasses.replace(row, slot=1, count=4))).tokens == 7
