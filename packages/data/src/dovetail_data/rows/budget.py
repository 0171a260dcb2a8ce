# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows, epochs and tokens that a run takes from each source, counted before it starts."""

import dataclasses
from html import escape

from dovetail_data import _elsewhere
from dovetail_data._arguments import require_integer
from dovetail_data.rows.rows import Rows, require_rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceBudget:
    """The share of one source in a `Budget`.

    Attributes:
        name: Name in the mixture; "" for rows without a mixture.
        rows: Number of rows drawn, exact. A preference pair counts as one.
        epochs: `rows` divided by the rows of the source.
        tokens: Expected number of filled slots: `rows` times the mean of a row.
        share: Fraction of the tokens of all sources.
    """

    name: str
    rows: int
    epochs: float
    tokens: float
    share: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """Rows, epochs and tokens of each source in a run. Print it to read it as a table.

    Attributes:
        steps: Number of batches.
        global_batch: Rows per batch.
        sources: One entry per source, by name.
    """

    steps: int
    global_batch: int
    sources: tuple[SourceBudget, ...]

    @property
    def rows(self) -> int:
        return sum(source.rows for source in self.sources)

    @property
    def tokens(self) -> float:
        return sum(source.tokens for source in self.sources)

    def __str__(self) -> str:
        lines = self._table()
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = [
            "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
            for line in lines
        ]
        return "\n".join([self._title(), *table])

    def _repr_html_(self) -> str:
        return f"<p>{self._title()}</p>{_html_table(self._table())}"

    def _title(self) -> str:
        return f"{self.steps:,} steps of {self.global_batch:,} rows"

    def _table(self) -> list[tuple[str, ...]]:
        lines = [("source", "rows", "epochs", "tokens", "share")]
        lines += [
            (
                source.name or "rows",
                f"{source.rows:,}",
                f"{source.epochs:.3f}",
                *_tokens(source.tokens, source.share),
            )
            for source in self.sources
        ]
        if len(self.sources) > 1:
            lines.append(("all", f"{self.rows:,}", "", *_tokens(self.tokens, 1.0)))
        return lines


def _html_table(table: list[tuple[str, ...]]) -> str:
    lines = ("".join(f"<td>{escape(cell)}</td>" for cell in line) for line in table)
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


@_elsewhere.call
def budget(rows: Rows, *, steps: int, global_batch: int) -> Budget:
    """Counts rows, epochs and tokens of each source in a run. Reads no document.

    Args:
        rows: The rows of the run; a mixture has one entry per source.
        steps: Number of batches.
        global_batch: Rows per batch, summed over all hosts.

    Returns:
        The budget. `print` shows it as a table.

    Raises:
        ValueError: A number is below 1, or global_batch is not a multiple of `rows.unit`.

    Example:

        >>> from pathlib import Path
        >>> from dovetail_data import Bytes, Text, pad, text, write
        >>> _ = Path("a.txt").write_text("To be, or not to be: that is the question.")
        >>> rows = pad(write(text("a.txt"), "corpus", encoder=Text(Bytes())), length=64)
        >>> print(budget(rows, steps=3, global_batch=2))
        3 steps of 2 rows
        source  rows  epochs  tokens   share
        rows       6   6.000     258  100.0%
    """
    require_rows(rows)
    for name, value in {"steps": steps, "global_batch": global_batch}.items():
        require_integer(name, value, f"Pass that of the run, such as {name}=1000.", least=1)
    if global_batch % rows.unit:
        raise ValueError(
            f"global_batch must be a multiple of the {rows.unit} rows of an example: got "
            f"global_batch={global_batch}. Pass {-(-global_batch // rows.unit) * rows.unit}."
        )
    places = steps * (global_batch // rows.unit)
    sources, drawn = rows.sources, rows.drawn(places)
    tokens = {name: drawn[name] * of.tokens / len(of) for name, of in sources.items()}
    return Budget(
        steps=steps,
        global_batch=global_batch,
        sources=tuple(
            SourceBudget(
                name=name,
                rows=drawn[name],
                epochs=drawn[name] / len(of),
                tokens=tokens[name],
                share=tokens[name] / sum(tokens.values()),
            )
            for name, of in sources.items()
        ),
    )


def _tokens(tokens: float, share: float) -> tuple[str, str]:
    return f"{tokens:,.0f}", f"{share:.1%}"
