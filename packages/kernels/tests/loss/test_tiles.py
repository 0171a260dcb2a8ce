# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Tiles within a budget, that cover tokens and vocabulary."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_kernels.loss.tiles import choose_tiles, tile_bytes

SIZES = {
    "tokens": st.integers(0, 5000),
    "width": st.integers(1, 600),
    "vocabulary": st.integers(1, 200_000),
}


@pytest.mark.thorough
@settings(deadline=None, max_examples=300, derandomize=True)
@given(
    **SIZES,
    item=st.sampled_from([4, 8]),
    budget=st.none() | st.integers(10**6, 10**9),
    platform=st.sampled_from(["cpu", "gpu"]),
)
def test_tiles_cover_and_fit(tokens, width, vocabulary, item, budget, platform):
    sizes = {"width": width, "vocabulary": vocabulary, "item": item}
    try:
        tiles = choose_tiles(tokens=tokens, budget=budget, platform=platform, **sizes)
    except ValueError as error:
        needed = int(re.search(r"Use budget=(\d+)", str(error))[1])
        assert needed > budget
        tiles = choose_tiles(tokens=tokens, budget=needed, platform=platform, **sizes)
    assert 0 <= tiles.rows <= tokens
    assert (tiles.rows == 0) == (tokens == 0)
    assert 1 <= tiles.columns <= vocabulary
    if tiles.columns < vocabulary:
        assert tiles.columns % 128 == 0
    if budget is not None and budget >= 10**9:
        assert tile_bytes(tiles, **sizes) <= budget
    if tokens:  # the padded tokens are less than one tile
        count = -(-tokens // tiles.rows)
        assert count * tiles.rows - tokens < tiles.rows


@pytest.mark.parametrize(
    "budget, expected",
    [
        (None, (512, 1024, True)),
        (96 * 2**20, (512, 1024, True)),
        (64 * 2**20, (256, 1024, True)),
        (32 * 2**20, (1024, 512, False)),
        (16 * 2**20, (1024, 512, False)),
        (4 * 2**20, (256, 128, False)),
        (10**6, (16, 128, False)),
    ],
)
def test_what_a_budget_gives_way_to(budget, expected):
    """First tokens of a kept tile, by half; then the product is repeated, on more tokens."""
    tiles = choose_tiles(
        tokens=2048, width=512, vocabulary=32768, item=4, budget=budget, platform="cpu"
    )
    assert (tiles.rows, tiles.columns, tiles.keep) == expected


def test_a_divisor_is_preferred_where_one_is_near():
    options = {"width": 8, "vocabulary": 1000, "item": 4, "budget": None, "platform": "cpu"}
    assert choose_tiles(tokens=1530, **options).rows == 510
    assert choose_tiles(tokens=1540, **options).rows == 385
    assert choose_tiles(tokens=1543, **options).rows == 386  # a prime: one token is padded
    options["vocabulary"] = 1025
    assert choose_tiles(tokens=512, **options).columns == 640  # two of 513, in lanes of 128


def test_bytes_are_those_of_the_tile_and_what_is_kept():
    sizes = {"tokens": 100, "width": 8, "vocabulary": 1000, "item": 4, "platform": "cpu"}
    kept = choose_tiles(**sizes, budget=None)
    assert (kept.rows, kept.columns, kept.keep) == (100, 1000, True)
    assert tile_bytes(kept, 8, 1000, 4) == 4 * (100_000 + 3 * (100_000 + 8 * 1000 + 100 * 8))


def test_a_budget_that_holds_no_tile_is_refused():
    with pytest.raises(
        ValueError, match=r"smallest tile, (\d+) bytes for D=8 and V=1000, got"
    ) as e:
        choose_tiles(tokens=64, width=8, vocabulary=1000, item=4, budget=9, platform="cpu")
    assert "budget=9. Use budget=" in str(e.value)
