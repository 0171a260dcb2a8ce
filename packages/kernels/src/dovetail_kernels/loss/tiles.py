# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Sizes of the tiles of logits, from a budget in bytes. They never change the answer.

There are three plans. *Kept*: the logits of a tile of tokens stay in memory over the whole
vocabulary, between the pass for their sum of exponentials and the pass for gradients: three
products. *Computed again*: nothing is kept, and the second pass repeats the first product: four, in
any memory. For each tile of tokens the gradient of the whole head is read and written once, so few
tokens per tile cost bandwidth. The kept plan is therefore not used below half of its usual tile.
There the other plan, with more tokens, takes less time (measured on a CPU: 1.15 of naive, and 1.4
at an eighth).

*Whole*, on a GPU: a tile has all columns and as many tokens as the budget holds. The program is one
loop over tokens with three large products. Its logits are written once and read three times, and
the sum of the head's gradient is added where its product is written. Tiles of columns cost a GPU
thousands of small steps, which copy their slice of the head, their logits and that sum. For 8192
tokens of width 4096 and 131,072 columns in bfloat16, with gradients, they took 74.9 ms on an H200
(jax 0.11.2); whole tiles of 4096 tokens took 44.3 ms, those of 2048 45.2 ms. The default of 2 GiB
holds 2048 of them: 1.1 GB of float32 logits, and their gradient in bfloat16. Below 512 tokens the
other plans follow: at 256, by bandwidth, the sum takes as long as the products.
"""

import dataclasses
from typing import Any

from dovetail_kernels.symbolic import is_symbolic

# Tokens and columns of a tile. On a CPU 512 x 1024 takes the least time of 64 to 512 x 512 to 4096
# (measured with M 2048, D 512, V 32768, float32). Elsewhere, not measured: products large enough to
# be bound by arithmetic at 300 FLOP/byte.
_SHAPES = {"cpu": (512, 1024)}
_LARGE = (2048, 8192)
_LEAST_WHOLE = 512  # tokens of a whole tile
_BUDGET_BYTES = {"cpu": 96 * 2**20, "gpu": 2**31}
_LARGE_BUDGET_BYTES = 2**30
_LEAST_ROWS, _LEAST_COLUMNS = 16, 128  # less does not fill vectors and operands of products
_LANES = 128  # columns are a multiple of this, for aligned slices


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tiles:
    """Sizes of a tile of logits.

    Attributes:
        rows: Tokens.
        columns: Columns of the vocabulary.
        keep: Whether logits are copied and kept. If not, they are computed again.
        whole: Whether `columns` are the vocabulary and the program has no loop over them. Logits
            are kept without a copy.
    """

    rows: int
    columns: Any
    keep: bool
    whole: bool = False


def choose_tiles(
    *,
    tokens: Any,
    width: Any,
    vocabulary: Any,
    item: int,
    operand_item: int,
    budget: int | None,
    platform: str,
) -> Tiles:
    """Returns the largest tiles with temporary arrays within the budget.

    Args:
        tokens: Number of tokens. A symbolic one counts as many.
        width: Width D of the head's input.
        vocabulary: Vocabulary size V.
        item: Bytes per logit.
        operand_item: Bytes per number of the operands, and of the gradient of the logits.
        budget: Bytes for the temporary arrays. None for the platform's default.
        platform: Platform of the device, for example "cpu".

    Raises:
        ValueError: Even the smallest tile exceeds the budget.
    """
    rows, columns = _SHAPES.get(platform, _LARGE)
    if is_symbolic(vocabulary) or is_symbolic(width):
        return _symbolic(platform, vocabulary=vocabulary, budget=budget)
    sizes = width, vocabulary, item, operand_item
    least = tile_bytes(_least(width, vocabulary, tokens), *sizes)
    if budget is None:
        budget = max(_BUDGET_BYTES.get(platform, _LARGE_BUDGET_BYTES), least)
    if platform == "gpu":
        row = Tiles(rows=1, columns=vocabulary, keep=False, whole=True)
        most = budget // tile_bytes(row, *sizes)
        if most >= (_LEAST_WHOLE if is_symbolic(tokens) else min(max(tokens, 1), _LEAST_WHOLE)):
            most = min(most, rows) if is_symbolic(tokens) else most
            return dataclasses.replace(row, rows=_split(tokens, most))
    shapes = [(rows // f, columns // g, True) for f in (1, 2) for g in (1, 2, 4)]
    rows *= 4
    while rows > _LEAST_ROWS or columns > _LEAST_COLUMNS:
        shapes.append((rows, columns, False))
        rows, columns = max(rows // 2, _LEAST_ROWS), max(columns // 2, _LEAST_COLUMNS)
    for r, c, keep in [*shapes, (_LEAST_ROWS, _LEAST_COLUMNS, False)]:
        tiles = Tiles(rows=_split(tokens, r), columns=_lanes(vocabulary, c), keep=keep)
        if tile_bytes(tiles, *sizes) <= budget:
            return tiles
    raise ValueError(
        f"budget must hold the smallest tile, {least} bytes for D={width} and V={vocabulary}, got "
        f"budget={budget}. Use budget={least} or more, or leave it out."
    )


def tile_bytes(tiles: Tiles, width: int, vocabulary: int, item: int, operand_item: int) -> int:
    """Returns the bytes of temporary arrays: logits, their gradient, a slice of the head, its sum.

    Results and their accumulators are not temporary. Each tile is counted twice for a copy, but
    not the logits of whole tiles, nor their gradient.

    Args:
        tiles: The tiles.
        width: Width D of the head's input.
        vocabulary: Vocabulary size V.
        item: Bytes per logit.
        operand_item: Bytes per number of the operands, and of the gradient of the logits.
    """
    if tiles.whole:
        return tiles.rows * (vocabulary * (item + operand_item) + 3 * width * item)
    kept = tiles.rows * vocabulary if tiles.keep else 0
    tile = 3 * tiles.rows * tiles.columns + 3 * width * tiles.columns + 3 * tiles.rows * width
    return item * (kept + tile)


def _symbolic(platform: str, *, vocabulary: Any, budget: int | None) -> Tiles:
    """Returns tiles for a symbolic width or vocabulary; those of the latter are whole rows."""
    if budget is not None:
        raise ValueError(
            f"budget must be compared with known sizes D and V, got budget={budget} and a symbolic "
            "dimension of jax.export in w. Leave it out, or use numbers for D and V."
        )
    rows, columns = _SHAPES.get(platform, _LARGE)
    if not is_symbolic(vocabulary):
        return Tiles(rows=rows, columns=_lanes(vocabulary, columns), keep=False)
    return Tiles(rows=rows, columns=vocabulary, keep=False, whole=platform == "gpu")


def _least(width: int, vocabulary: int, tokens: Any) -> Tiles:
    return Tiles(
        rows=_split(tokens, _LEAST_ROWS), columns=_lanes(vocabulary, _LEAST_COLUMNS), keep=False
    )


def _split(tokens: Any, rows: int) -> int:
    """Returns the tokens of a tile, at most `rows`. A near divisor saves a padded copy."""
    if is_symbolic(tokens):
        return rows
    fewest = max(_up(tokens, rows), 1)
    count = next((n for n in range(fewest, 2 * fewest) if tokens % n == 0), fewest)
    return _up(tokens, count)


def _lanes(vocabulary: Any, columns: int) -> int:
    """Returns the columns of a tile, as even as whole lanes allow: the last tile overlaps."""
    even = _up(vocabulary, _up(vocabulary, columns))
    return min(_up(even, _LANES) * _LANES, vocabulary)


def _up(a: Any, b: Any) -> Any:
    """Returns a / b, rounded up."""
    return -(-a // b)
