# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Mixtures: rows of several sources in given proportions, in stages.

A mixture is arithmetic on places. The weights alone determine the source of the row at any place,
and the number of its rows before it. Any batch is therefore available without those before it. Rows
are mixed; packed rows are full, so with them weights are shares of the tokens.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, get_args

import numpy as np
from jaxtyping import Int32, Int64, UInt64

from dovetail_data import _elsewhere
from dovetail_data._arguments import wrong
from dovetail_data.corpus.corpus import CorruptDocument
from dovetail_data.mixture.stage import Stage, Weights, counts_of
from dovetail_data.mixture.timeline import Exhausted, Timeline
from dovetail_data.rows.rows import Arrays, Draws, Rows, Span, require_rows

_NUMBERS = {"image_ids", "pair_ids", "prompt_ids"}  # fields that count the rows of one source
_SOURCE = "source"


@_elsewhere.mix
def mix(
    rows: Mapping[str, Rows],
    *,
    weights: Weights,
    exhausted: Exhausted = "repeat",
    stages: Sequence[Stage] = (),
) -> "Mixture":
    """Mixes the rows of several sources: a fraction weights[name] / sum(weights) of each.

    After any number of rows of a stage with k sources, the number of rows from each source is
    within 1 - 1/(2k - 2) of its share. Each source is shuffled within itself by (seed, name), anew
    in each of its epochs.

    Args:
        rows: Rows by name. They must agree in length, fields and `unit`.
        weights: Weight of each name, >= 0. 0 turns a source off. Weights are exact if integers of
            sum <= 65,536 have their proportions, and are rounded to 65,536ths if not;
            `Mixture.weights` has the result.
        exhausted: Behaviour at the end of a source. "repeat" starts it over, and the mixture never
            ends. "stop" ends the epoch before the first row that would be a repetition. "drop"
            continues with the other sources in their proportions, and an epoch has every row once.
            With "stop" and "drop", the next epoch of the mixture is the next of every source.
        stages: Other weights from some row on. Starts count from row 0 of the order, and with
            "stop" and "drop" from the beginning of each epoch, which each stage must lie in. A run
            may add a later stage, with new sources.

    Returns:
        The mixture. Its batches have one more field, `source` i32[B], with the index of the row's
        source among the sorted names.

    Raises:
        TypeError: A source is not rows, such as a corpus.
        ValueError: A weight is negative, not finite, missing, of an unknown name or too small to
            keep, or all are 0. Stages are not in order. Sources differ in length, fields or `unit`.

    Example:

        >>> from pathlib import Path
        >>> from dovetail_data import Bytes, Text, mix, pack, text, write
        >>> _ = Path("a.txt").write_text("To be, or not to be: that is the question.")
        >>> rows = pack(write(text("a.txt"), "corpus", encoder=Text(Bytes())), length=8)
        >>> mix({"web": rows, "code": rows}, weights={"web": 0.7, "code": 0.3})
        Mixture(rows=12, length=8, sources=['code', 'web'])
    """
    if exhausted not in get_args(Exhausted):
        raise ValueError(
            f"exhausted must be one of {', '.join(get_args(Exhausted))}: got "
            f'exhausted={exhausted!r}. Pass "repeat" for no end.'
        )
    if not isinstance(rows, Mapping):
        raise TypeError(
            f"rows must be a mapping of names to Rows: got rows={rows!r:.200} of type "
            f'{type(rows).__name__}. Pass {{"web": web, "code": code}}.'
        )
    if not rows:
        raise ValueError('a mixture must have a source: got rows={}. Pass {"web": rows, ..}.')
    for name, source in rows.items():
        require_rows(source, f"rows[{name!r}]")
    if not isinstance(stages, Sequence) or isinstance(stages, str | bytes):
        remedy = "Pass [Stage(start=..., weights={..})]."
        raise wrong("stages", "a sequence of Stage", stages, remedy)
    for stage in stages:
        if not isinstance(stage, Stage):
            raise TypeError(
                f"stages must be a sequence of Stage: got {stage!r:.200} of type "
                f"{type(stage).__name__}. Pass [Stage(start=..., weights={{..}})]."
            )
    every = (Stage(start=0, weights=weights), *stages)
    for before, after in itertools.pairwise(every):
        if after.start <= before.start:
            raise ValueError(
                f"stages must begin one after the other, behind row 0: got start={after.start} "
                f"after start={before.start}. Sort them; the first rows are those of weights=."
            )
    return Mixture(rows, stages=every, exhausted=exhausted)


class Mixture(Rows):
    """Rows of several sources, as `mix` returns them.

    Row numbers run through the sources laid end to end, sorted by name. The order of an iterator
    interleaves them.

    Args:
        rows: Rows by name.
        stages: The stages, the first from row 0.
        exhausted: "repeat", "stop" or "drop"; see `mix`.

    Attributes:
        weights: Weights of each stage in use, after rounding.
    """

    def __init__(
        self, rows: Mapping[str, Rows], *, stages: Sequence[Stage], exhausted: Exhausted
    ) -> None:
        self._names = sorted(rows)
        self._rows = [rows[name] for name in self._names]
        self._fields = _common_fields(self.sources)
        self.unit, self.length = self._rows[0].unit, self._rows[0].length
        self.tokens = sum(source.tokens for source in self._rows)
        self._exhausted = exhausted
        self._offsets = np.cumsum([0, *map(len, self._rows)])
        self._stages = [stage.start for stage in stages]
        counts = [counts_of(stage, self._names) for stage in stages]
        self.weights: tuple[dict[str, Fraction], ...] = tuple(
            {name: Fraction(n, sum(of)) for name, n in zip(self._names, of, strict=True)}
            for of in counts
        )
        sizes = [source.epoch for source in self._rows]
        self._timeline = Timeline(
            self._stages,
            [np.array(of) for of in counts],
            sizes=sizes,
            exhausted=exhausted,
        )
        if exhausted == "drop" and self.epoch is not None:
            self._check_all_given(self.epoch, sizes)

    def __len__(self) -> int:
        return int(self._offsets[-1])

    def _details(self) -> str:
        return f"sources={self._names}"

    @property
    def sources(self) -> Mapping[str, Rows]:
        return dict(zip(self._names, self._rows, strict=True))

    @property
    def epoch(self) -> int | None:
        return self._timeline.epoch

    def batch(
        self,
        rows: Int64[np.ndarray, "k"],
        *,
        keys: UInt64[np.ndarray, "k"] | None = None,
        corrupt: list[CorruptDocument] | None = None,
    ) -> Arrays:
        """Reads `rows` and stacks them; each source is read once.

        The field `source` i32[B] is the index of the row's source in `sources`. `image_ids`,
        `pair_ids` and `prompt_ids` count through the rows of all sources.

        Args:
            rows: Row numbers, i64[k], in any order.
            keys: Random keys for `map`, u64[k]. Default: the row numbers of each source.
            corrupt: Receives damaged documents, which are masked in the batch. None raises instead.
        """
        self._check(rows)
        units = (len(rows), self.unit)
        batch = {
            name: np.empty((*units, *shape), dtype) for name, (dtype, shape) in self._fields.items()
        }
        source = np.searchsorted(self._offsets, rows, side="right") - 1
        for j in set(source.tolist()):
            from_j = source == j
            of_source = self._rows[j].batch(
                rows[from_j] - self._offsets[j],
                keys=None if keys is None else keys[from_j],
                corrupt=corrupt,
            )
            for name, array in batch.items():
                array[from_j] = of_source[name].reshape(-1, *array.shape[1:])
            for name in _NUMBERS & batch.keys():
                batch[name][from_j] += self._offsets[j]
        flat = {
            name: array.reshape(len(rows) * self.unit, *array.shape[2:])
            for name, array in batch.items()
        }
        return flat | {_SOURCE: np.repeat(source, self.unit).astype(np.int32)}

    def extra(self, prompt_ids: Int32[np.ndarray, "k"] | Sequence[int]) -> list[dict[str, Any]]:
        fields = []
        for row in np.asarray(prompt_ids, np.int64).tolist():
            j = self._source_of(row)
            fields += self._rows[j].extra([row - int(self._offsets[j])])
        return fields

    def _source_of(self, row: int) -> int:
        return int(np.searchsorted(self._offsets, row, side="right")) - 1

    def explain(self, row: int) -> list[Span]:
        """Returns the spans of one row.

        `mixed` is the name of its source, "outer/inner" in a mixture of mixtures.
        """
        self._check_row(row)
        j = self._source_of(row)
        return [
            dataclasses.replace(span, mixed="/".join(filter(None, (self._names[j], span.mixed))))
            for span in self._rows[j].explain(row - int(self._offsets[j]))
        ]

    def identity(self, place: int) -> Mapping[str, str]:
        """Returns {"mixture": digest} of the stages that begin before `place` and their sources."""
        begun = sum(start < max(place, 1) for start in self._stages)
        stages = [
            {"start": start, "weights": {name: str(w) for name, w in weights.items() if w}}
            for start, weights in zip(self._stages[:begun], self.weights, strict=False)
        ]
        reached = zip(self._names, self._timeline.reached(place).tolist(), strict=True)
        used = {name for stage in stages for name in stage["weights"]}
        sources = {
            name: dict(self.sources[name].identity(n)) for name, n in reached if name in used
        }
        content = {"exhausted": self._exhausted, "stages": stages, "sources": sources}
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
        return {"mixture": digest[:16]}

    def draws(self, seed: int | None) -> Draws:
        """Returns the order of the mixture's rows.

        `seed=None` keeps each source in its own order.
        """
        draws = [
            source.draws(None if seed is None else _derived(seed, name))
            for name, source in self.sources.items()
        ]
        return _MixedDraws(self._timeline, draws=draws, offsets=self._offsets)

    def drawn(self, places: int) -> Mapping[str, int]:
        return dict(zip(self._names, self._timeline.drawn(places).tolist(), strict=True))

    def _check_all_given(self, epoch: int, sizes: Sequence[int | None]) -> None:
        for (name, given), size in zip(self.drawn(epoch).items(), sizes, strict=True):
            if size is not None and given != size:
                raise ValueError(
                    'with exhausted="drop" every row must come: got weight 0 in the last stage '
                    f"for {name!r}, of whose {size} rows {given} come before it. Give it a weight "
                    'there, leave it out of the mixture, or pass exhausted="stop".'
                )


@dataclasses.dataclass(frozen=True)
class _MixedDraws:
    timeline: Timeline
    _: dataclasses.KW_ONLY
    draws: Sequence[Draws]
    offsets: np.ndarray

    def __call__(self, places: np.ndarray) -> np.ndarray:
        source, nth = self.timeline.at(places)
        rows = np.empty(len(places), np.int64)
        for j in set(source.tolist()):
            from_j = source == j
            rows[from_j] = self.draws[j](nth[from_j]) + self.offsets[j]
        return rows


def _derived(seed: int, name: str) -> int:
    """Returns a seed for one source, so that two sources of one length differ in their order."""
    return int.from_bytes(hashlib.sha256(f"mix/{seed}/{name}".encode()).digest()[:8], "little")


def _common_fields(sources: Mapping[str, Rows]) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
    """Returns dtype and shape of a row in each array; ValueError unless all sources agree."""
    formats = {
        name: {
            "rows per example": rows.unit,
            "length": rows.length,
            "fields": {
                field: (array.dtype, array.shape[1:])
                for field, array in rows.batch(np.zeros(0, np.int64)).items()
                if field != _SOURCE  # of an inner mixture, which is one source here
            },
        }
        for name, rows in sources.items()
    }
    first, *others = formats
    for other in others:
        for name, value in formats[first].items():
            if formats[other][name] != value:
                raise ValueError(
                    f"the sources of a mixture must have the same {name}: got {value} in "
                    f"{first!r} and {formats[other][name]} in {other!r}. Make all of them with one "
                    "function, and give it the same length."
                )
    return formats[first]["fields"]
