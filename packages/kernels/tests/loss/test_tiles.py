# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Tiles within a budget, that cover tokens and vocabulary."""

import re

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_kernels.loss.tiles import Tiles, choose_tiles, tile_bytes

FLOAT32, BFLOAT16 = {"item": 4, "operand_item": 4}, {"item": 4, "operand_item": 2}
SIZES = {
    "tokens": st.integers(0, 5000),
    "width": st.integers(1, 600),
    "vocabulary": st.integers(1, 200_000),
}


@pytest.mark.thorough
@settings(deadline=None, max_examples=300, derandomize=True)
@given(
    **SIZES,
    items=st.sampled_from([(4, 2), (4, 4), (8, 8)]),
    budget=st.none() | st.integers(10**6, 10**9),
    platform=st.sampled_from(["cpu", "gpu"]),
)
def test_tiles_cover_and_fit(tokens, width, vocabulary, items, budget, platform):
    sizes = {"width": width, "vocabulary": vocabulary}
    sizes |= dict(zip(("item", "operand_item"), items, strict=True))
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
    sizes = {"tokens": 2048, "width": 512, "vocabulary": 32768, **FLOAT32}
    tiles = choose_tiles(**sizes, budget=budget, platform="cpu")
    assert (tiles.rows, tiles.columns, tiles.keep) == expected


def test_a_divisor_is_preferred_where_one_is_near():
    options = {"width": 8, "vocabulary": 1000, **FLOAT32, "budget": None, "platform": "cpu"}
    assert choose_tiles(tokens=1530, **options).rows == 510
    assert choose_tiles(tokens=1540, **options).rows == 385
    assert choose_tiles(tokens=1543, **options).rows == 386  # a prime: one token is padded
    options["vocabulary"] = 1025
    assert choose_tiles(tokens=512, **options).columns == 640  # two of 513, in lanes of 128


def test_bytes_are_those_of_the_tile_and_what_is_kept():
    sizes = {"tokens": 100, "width": 8, "vocabulary": 1000, **FLOAT32}
    kept = choose_tiles(**sizes, budget=None, platform="cpu")
    assert (kept.rows, kept.columns, kept.keep) == (100, 1000, True)
    assert tile_bytes(kept, 8, 1000, 4, 4) == 4 * (100_000 + 3 * (100_000 + 8 * 1000 + 100 * 8))


def test_a_budget_that_holds_no_tile_is_refused():
    with pytest.raises(
        ValueError, match=r"smallest tile, (\d+) bytes for D=8 and V=1000, got"
    ) as e:
        choose_tiles(tokens=64, width=8, vocabulary=1000, **FLOAT32, budget=9, platform="cpu")
    assert "budget=9. Use budget=" in str(e.value)


@pytest.mark.parametrize(
    "tokens, width, vocabulary, items, rows",
    [
        (8192, 4096, 131072, BFLOAT16, 2048),
        (8192, 4096, 131072, FLOAT32, 1024),
        (16384, 2048, 128256, BFLOAT16, 2048),
        (32768, 768, 50304, BFLOAT16, 4096),
        (16381, 768, 50257, BFLOAT16, 5461),  # a prime: two tokens are padded
        (100, 64, 1000, FLOAT32, 100),
        (0, 64, 1000, FLOAT32, 0),
    ],
)
def test_a_gpu_takes_the_whole_vocabulary_by_default(tokens, width, vocabulary, items, rows):
    sizes = {"width": width, "vocabulary": vocabulary, **items}
    tiles = choose_tiles(tokens=tokens, **sizes, budget=None, platform="gpu")
    assert tiles == Tiles(rows=rows, columns=vocabulary, keep=False, whole=True)
    # The gradient of the logits has the dtype of the operands, and no logits are copied.
    logits = rows * vocabulary * (items["item"] + items["operand_item"])
    assert tile_bytes(tiles, **sizes) == logits + 3 * rows * width * 4 <= 2**31


def test_a_budget_of_a_gpu_for_fewer_than_512_tokens_has_tiles_of_columns():
    sizes = {"width": 4096, "vocabulary": 131072, **BFLOAT16, "platform": "gpu"}
    least = 512 * (131072 * 6 + 3 * 4096 * 4)
    tiles = choose_tiles(tokens=8192, **sizes, budget=least)
    assert (tiles.rows, tiles.whole) == (512, True)
    tiles = choose_tiles(tokens=8192, **sizes, budget=least - 1)
    assert tiles == Tiles(rows=2048, columns=2048, keep=False)
    assert choose_tiles(tokens=511, **sizes, budget=least - 1).whole  # they are all


def test_symbolic_sizes_on_a_gpu():
    tokens, vocabulary = jax.export.symbolic_shape("m, v")
    sizes = {"width": 64, **BFLOAT16, "platform": "gpu"}
    tiles = choose_tiles(tokens=tokens, vocabulary=1000, **sizes, budget=None)
    assert tiles == Tiles(rows=2048, columns=1000, keep=False, whole=True)  # not all of 2 GiB
    tiles = choose_tiles(tokens=tokens, vocabulary=1000, **sizes, budget=600 * 6768)
    assert tiles == Tiles(rows=600, columns=1000, keep=False, whole=True)
    tiles = choose_tiles(tokens=tokens, vocabulary=1000, **sizes, budget=511 * 6768)
    assert not tiles.whole
    tiles = choose_tiles(tokens=tokens, vocabulary=vocabulary, **sizes, budget=None)
    assert tiles == Tiles(rows=2048, columns=vocabulary, keep=False, whole=True)
