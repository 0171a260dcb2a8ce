# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows as one HTML page."""

import base64
from collections.abc import Iterator, Sequence
from html import escape

from dovetail_data.showing.passages import Passage, ShownRow
from dovetail_data.showing.visible import visible
from dovetail_data.tokenizing.pieces import Piece

# The policy holds even if the escaping below had a hole: no script, nothing from elsewhere.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem; color: #222; background: #fff }
h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; border-top: 2px solid #222; padding-top: .5rem }
h3 { font-size: .85rem; font-weight: 600; margin: 0 0 .25rem; color: #555 }
.passages { display: grid; grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr)); gap: 1rem }
.passages.one { grid-template-columns: 1fr }
article { border-left: 4px solid #bbb; padding-left: .75rem; min-width: 0 }
pre { font: 14px/1.6 ui-monospace, monospace; margin: 0; white-space: pre-wrap;
      overflow-wrap: anywhere }
pre span { color: #777; box-shadow: inset 1px 0 #e4e4e4 }
pre .learnt { color: #0a3d14; background: #d7f3dc }
pre .special { font-weight: 700; outline: 1px solid #999; border-radius: 3px }
pre span:hover { background: #ffe08a }
.error { color: #b00020 }
.note { color: #555; margin-top: .5rem }
img { image-rendering: pixelated; min-width: 8rem; max-width: 100%; border: 1px solid #bbb }
"""
_LEGEND = (
    '<pre><span class="learnt">learnt</span> <span>read, not learnt</span> '
    '<span class="special">special token</span></pre>'
)


def html(rows: Sequence[ShownRow], *, title: str) -> str:
    """Returns the page."""
    name = escape(visible(title, lines=False))
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">',
            f"<title>{name}</title><style>{_STYLE}</style></head>",
            f"<body><h1>{name}</h1>",
            _LEGEND,
            *(line for row in rows for line in _row(row)),
            "</body></html>\n",
        ]
    )


def _row(row: ShownRow) -> Iterator[str]:
    yield f"<section><h2>row {row.row}: {escape(row.summary)}</h2>"
    # Sides of a pair stand beside each other, documents that share a row below.
    kind = "passages" if row.side_by_side else "passages one"
    yield f'<div class="{kind}">'
    for passage in row.passages:
        yield _article(passage)
    yield "</div>"
    if row.png is not None:
        encoded = base64.b64encode(row.png).decode("ascii")
        yield f'<img alt="{escape(row.summary)}" src="data:image/png;base64,{encoded}">'
    for name, note in row.notes.items():
        safe = "\n".join(visible(line) for line in f"{name}: {note}".split("\n"))
        yield f'<pre class="note">{escape(safe)}</pre>'
    yield "</section>"


def _article(passage: Passage) -> str:
    error = visible(passage.error, lines=False)
    return (
        f"<article><h3>{escape(visible(passage.title, lines=False))}</h3>"
        + (f'<p class="error">{escape(error)}</p>' if error else "")
        + (f"<pre>{''.join(map(_span, passage.pieces))}</pre>" if passage.pieces else "")
        + "</article>"
    )


def _span(piece: Piece) -> str:
    ids = " ".join(map(str, piece.ids))
    word = "id" if len(piece.ids) == 1 else "ids"
    tip = f"{word} {ids}, position {piece.position}, mask {piece.mask:g}"
    kinds = " ".join(
        kind for kind, holds in (("learnt", piece.mask > 0), ("special", piece.special)) if holds
    )
    style = f' class="{kinds}"' if kinds else ""
    return f'<span{style} title="{tip}">{escape(visible(piece.text))}</span>'
