# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Bar charts as SVG. They need no library and open in any browser."""

from collections.abc import Mapping
from html import escape

_ROW, _LEFT, _BAR, _RIGHT = 18, 260, 300, 260  # in user units


def bars(rows: Mapping[str, tuple[float, str]], *, label: str) -> str:
    """Returns one SVG with a bar for each row, from 0 to its value, and the row's text behind it.

    Raises:
        ValueError: There are no rows.
    """
    if not rows:
        raise ValueError("a chart needs a row, got none; quantize a site")
    most = max(value for value, _ in rows.values()) or 1.0
    drawn = []
    for i, (name, (value, text)) in enumerate(rows.items()):
        top, width = _ROW * (i + 1), _BAR * value / most
        drawn.append(
            f'<text x="{_LEFT - 6}" y="{top + 12}" text-anchor="end">{escape(name)}</text>'
            f'<rect x="{_LEFT}" y="{top + 2}" width="{width:.1f}" height="{_ROW - 5}"/>'
            f'<text x="{_LEFT + width + 6:.1f}" y="{top + 12}">{value:.4f}  {escape(text)}</text>'
        )
    width, height = _LEFT + _BAR + _RIGHT, _ROW * (len(rows) + 2)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(label)}" font-family="sans-serif" font-size="11">'
        f'<rect width="{width}" height="{height}" fill="white"/><g fill="#222">'
        f'<text x="{_LEFT}" y="12">{escape(label)}</text></g><g fill="#345">'
        + "".join(drawn)
        + "</g></svg>"
    )
