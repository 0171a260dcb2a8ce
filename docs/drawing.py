# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The drawing of the packages on the first page and in the README: `python docs/drawing.py`.

Each package is a joint of a row; between two rows stand the types that they exchange. On the site
the drawing takes the colours of the theme and its joints are links; elsewhere, those of the reader.
"""

from html import escape
from pathlib import Path

FILE = Path(__file__).resolve().parent / "_static/packages.svg"
WIDTH, ROW, GAP = 420, 58, 30
TAIL, NECK, HEAD = 9, 8, 14  # of a joint: its depth, and half its height at both ends
# A row of packages with a few words for each, or the types that go from row to row.
ROWS: tuple[dict[str, str] | str, ...] = (
    "text, chats and images",
    {"data": "text to exact, resumable batches"},
    "dicts of NumPy arrays",
    {"models": "families on NNX", "kernels": "hot operations", "optim": "beside Optax"},
    "an nnx.Module, an optax.GradientTransformation",
    {"train": "any NNX module", "tune": "SFT, DPO, rewards", "checkpoint": "verified commits"},
    "pytrees of jax.Array, Hugging Face directories",
    {"quant": "int8 and int4", "infer": "an LLM engine", "serve": "bundles, a server"},
    "all of them on record, measured, on many hosts, by one command",
    {
        "runs": "a folder each",
        "profile": "time spent",
        "cluster": "many hosts",
        "stack": "one command",
    },
)
STYLE = """
.packages { --wood: var(--color-brand-primary, #a4501c); --ink: var(--color-foreground-muted, #666);
  --page: var(--color-background-primary, #fff) }
@media (prefers-color-scheme: dark) { .packages { --wood: var(--color-brand-primary, #e39a62);
  --ink: var(--color-foreground-muted, #aaa); --page: var(--color-background-primary, #0d1117) } }
.packages text { font: 12px system-ui, sans-serif; text-anchor: middle; fill: var(--page) }
.packages .joint { fill: var(--wood); stroke: var(--page); stroke-width: 2 }
.packages .name { font-weight: 600; font-size: 15px }
.packages .between { fill: var(--ink) }
"""


def drawing() -> str:
    """Returns the drawing as SVG."""
    lines, y = [], 0
    for row in ROWS:
        if isinstance(row, str):
            arrow = "" if y == 0 or row == ROWS[-2] else "↓ "
            lines.append(text("between", WIDTH / 2, y + 20, arrow + row))
            y += GAP
            continue
        width = WIDTH / len(row)
        for i, (package, words) in enumerate(row.items()):
            x = i * width
            middle = x + width / 2 + (TAIL / 2 if i else 0)
            shown = joint(x, y, width, i, i == len(row) - 1)
            shown += text("name", middle, y + 25, package) + text("words", middle, y + 43, words)
            lines.append(f'<a href="packages/{package}.html">{shown}</a>')
        y += ROW
    title = "<title>The packages, and the types that they exchange</title>"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="packages" viewBox="0 0 {WIDTH} {y}">'
    return "\n".join([head, title, f"<style>{STYLE}</style>", *lines, "</svg>\n"])


def joint(x: float, y: float, width: float, i: int, last: bool) -> str:
    """Returns the outline of a package: a tail at its right, and room for one at its left.

    Args:
        x: Left edge.
        y: Upper edge.
        width: Width without the tail.
        i: Place in the row. The first one has a straight left edge.
        last: Whether the right edge is straight.
    """
    right, middle = x + width, y + ROW / 2
    tail = [(0, -NECK), (TAIL, -HEAD), (TAIL, HEAD), (0, NECK)]
    points = [(x, y), (right, y)]
    points += [] if last else [(right + dx, middle + dy) for dx, dy in tail]
    points += [(right, y + ROW), (x, y + ROW)]
    points += [(x + dx, middle + dy) for dx, dy in reversed(tail)] if i else []
    path = " ".join(f"{a:g},{b:g}" for a, b in points)
    return f'<polygon class="joint" points="{path}"/>'


def text(kind: str, x: float, y: float, words: str) -> str:
    """Returns a line of text around x."""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(words)}</text>'


if __name__ == "__main__":
    FILE.write_text(drawing(), encoding="utf-8")
