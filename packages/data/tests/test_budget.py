# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from dovetail_data import pack, pad
from dovetail_data.mixture.mix import Stage, mix
from dovetail_data.rows.budget import SourceBudget, budget

LONG, SHORT = [9, 9, 9, 9, 5], [3, 3, 2]  # ids: 36 pairs, and 5


@pytest.fixture
def sources(corpus_of):
    return {"long": pad(corpus_of(LONG), length=8), "short": pad(corpus_of(SHORT), length=8)}


def test_plain_rows_are_one_line(corpus_of):
    rows = pack(corpus_of([9, 5, 5]), length=8)  # 2 rows, full
    counted = budget(rows, steps=3, global_batch=5)
    assert counted.sources == (
        SourceBudget(name="", rows=15, epochs=7.5, tokens=15 * 8.0, share=1.0),
    )
    assert (counted.rows, counted.tokens) == (15, 120.0)
    assert str(counted).splitlines() == [
        "3 steps of 5 rows",
        "source  rows  epochs  tokens   share",
        "rows      15   7.500     120  100.0%",
    ]


def test_each_source_has_its_rows_epochs_and_tokens(sources):
    rows = mix(
        sources,
        weights={"long": 3, "short": 1},
        stages=[Stage(start=400, weights={"long": 0, "short": 1})],
    )
    counted = budget(rows, steps=100, global_batch=5)
    # 400 rows at 3 to 1, then 100 of short; 36 / 5 tokens in a row of long, 5 / 3 in one of short.
    tokens = {"long": 300 * 36 / 5, "short": 200 * 5 / 3}
    expected = {
        "long": (300, 300 / 5, tokens["long"]),
        "short": (200, 200 / 3, tokens["short"]),
    }
    for source in counted.sources:
        count, epochs, of = expected.pop(source.name)
        assert source.rows == count
        assert source.epochs == pytest.approx(epochs, rel=1e-12)
        assert source.tokens == pytest.approx(of, rel=1e-12)
        assert source.share == pytest.approx(of / sum(tokens.values()), rel=1e-12)
    assert not expected
    assert counted.rows == 500
    assert str(counted).splitlines() == [
        "100 steps of 5 rows",
        "source  rows  epochs  tokens   share",
        "long     300  60.000   2,160   86.6%",
        "short    200  66.667     333   13.4%",
        "all      500           2,493  100.0%",
    ]


def test_the_plan_is_what_the_order_gives(sources):
    rows = mix(sources, weights={"long": 0.55, "short": 0.45}, exhausted="drop")
    counted = {
        source.name: source.rows for source in budget(rows, steps=11, global_batch=3).sources
    }
    drawn = rows.draws(7)(np.arange(33))
    assert counted == {"long": (drawn < 5).sum(), "short": (drawn >= 5).sum()}


def test_a_function_over_the_rows_changes_no_plan(sources):
    rows = mix(sources, weights={"long": 1, "short": 1})
    for plain in (rows, sources["long"]):
        mapped = plain.map(lambda row, rng: row)
        expected = budget(plain, steps=4, global_batch=2)
        assert budget(mapped, steps=4, global_batch=2) == expected


@pytest.mark.parametrize("name", ["steps", "global_batch"])
@pytest.mark.parametrize("value", [0, -3])
def test_nothing_to_plan_is_an_error(sources, name, value):
    options = {"steps": 1, "global_batch": 1, name: value}
    with pytest.raises(ValueError, match=rf"{name} must be >= 1: got {name}={value}. Pass that"):
        budget(sources["long"], **options)


def test_half_an_example_is_an_error(sources):
    sources["long"].unit = 2  # as pairs are
    with pytest.raises(ValueError, match=r"multiple of the 2 rows of an .*=3. Pass 4\."):
        budget(sources["long"], steps=1, global_batch=3)
    assert budget(sources["long"], steps=5, global_batch=4).rows == 10


def test_a_notebook_shows_the_table(corpus_of):
    rows = mix({"<b>": pad(corpus_of(LONG), length=8)}, weights={"<b>": 1})
    html = budget(rows, steps=1, global_batch=5)._repr_html_()
    assert html.startswith("<p>1 steps of 5 rows</p><table><tr><td>source</td>")
    assert "<tr><td>&lt;b&gt;</td><td>5</td><td>1.000</td><td>36</td><td>100.0%</td></tr>" in html
