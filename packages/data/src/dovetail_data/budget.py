# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Counts, before a run starts, the rows, epochs and tokens that it takes of each source."""

import dataclasses

from dovetail_data.rows import Rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceBudget:
    """The share of one source. name: "" for rows that are no mixture.

    rows: exactly; of the rows that `len(rows)` counts. epochs: rows / those there are. tokens: of
    slots that hold a pair, the mean of a row times rows. share: of the tokens of all sources.
    """

    name: str
    rows: int
    epochs: float
    tokens: float
    share: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Budget:
    """The contents of `steps` batches of `global_batch` rows; str() gives a table."""

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
        lines = [("source", "rows", "epochs", "tokens", "share")]
        lines += [
            (
                one.name or "rows",
                f"{one.rows:,}",
                f"{one.epochs:.3f}",
                *_tokens(one.tokens, one.share),
            )
            for one in self.sources
        ]
        if len(self.sources) > 1:
            lines.append(("all", f"{self.rows:,}", "", *_tokens(self.tokens, 1.0)))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = [
            "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
            for line in lines
        ]
        return "\n".join([f"{self.steps:,} steps of {self.global_batch:,} rows", *table])


def budget(rows: Rows, *, steps: int, global_batch: int) -> Budget:
    """Rows, epochs and tokens of each source in `steps` batches of `global_batch` rows.

    Reads no document. print(budget(..)) shows a table.
    """
    for name, value in {"steps": steps, "global_batch": global_batch}.items():
        if value < 1:
            raise ValueError(f"{name} must be >= 1: got {name}={value}. Pass that of the run.")
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
