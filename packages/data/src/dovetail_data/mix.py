# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows of several sources as one, in given proportions, in stages.

A mixture is arithmetic on places: which source gives the row at a place, and how many of its rows
came before, follow from the weights alone, so that any batch is found without those before it. What
is mixed is rows: with packed ones, which are full, weights are shares of the tokens.
"""

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, get_args

import numpy as np
from jaxtyping import Int32, Int64, UInt64

from dovetail_data._timeline import Exhausted, Timeline
from dovetail_data.corpus import CorruptDocument
from dovetail_data.rows import Arrays, Draws, Rows, Span
from dovetail_data.stage import Stage, Weights, counts_of

_NUMBERS = {"pair_ids", "prompt_ids"}  # fields that count the rows of one source
_SOURCE = "source"


def mix(
    rows: Mapping[str, Rows],
    *,
    weights: Weights,
    exhausted: Exhausted = "repeat",
    stages: Sequence[Stage] = (),
) -> "Mixture":
    """The rows of several sources, by name, weights[name] / sum(weights) of each.

    After any number of rows of a stage with k sources, each source has given what its weight says
    to within 1 - 1/(2k - 2) of a row. Weights are exact where integers of sum <= 65,536 have their
    proportions, and are rounded to 65,536ths where not: `Mixture.weights` has what is used. Each
    source is shuffled within itself, by (seed, name), anew in each of its epochs.

    exhausted: what happens when a source is used up. "repeat": it starts over, and the mixture
    never ends. "stop": the epoch ends before the first row that would be a source's second time.
    "drop": it leaves, the others go on in their proportions, and an epoch has every row once.
    The next epoch of the mixture is then the next of every source.

    stages: other weights from some row on. Their starts count rows from the beginning of the
    order, and with "stop" and "drop" from the beginning of each epoch, in which each must begin.
    A stage that begins later may be added to a run, and a source that it alone uses.

    ValueError for weights that are negative, not finite, all 0, of other names, or too small to be
    kept, and for sources whose rows differ in length, fields or rows per example.

        mixture = mix({"web": web, "code": code}, weights={"web": 0.7, "code": 0.3})
    """
    if exhausted not in get_args(Exhausted):
        raise ValueError(
            f"exhausted must be one of {', '.join(get_args(Exhausted))}: got "
            f'exhausted={exhausted!r}. Pass "repeat" for no end.'
        )
    if not rows:
        raise ValueError("a mixture must have a source: got rows={}. Pass some by name.")
    every = (Stage(start=0, weights=weights), *stages)
    for before, after in itertools.pairwise(every):
        if after.start <= before.start:
            raise ValueError(
                f"stages must begin one after the other, behind row 0: got start={after.start} "
                f"after start={before.start}. Sort them; the first rows are those of weights=."
            )
    return Mixture(rows, stages=every, exhausted=exhausted)


class Mixture(Rows):
    """What `mix` returns. Row i of the sources laid end to end, by name, is row i of the mixture.

    weights: those realised, of each stage.
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
        """The rows as one batch, each source read once. `source` i32[B] is the index of a row's
        source in `sources`; `pair_ids` and `prompt_ids` count the rows of all sources."""
        self._check(rows)
        units = (len(rows), self.unit)
        batch = {
            name: np.empty((*units, *shape), dtype) for name, (dtype, shape) in self._fields.items()
        }
        source = np.searchsorted(self._offsets, rows, side="right") - 1
        for j in set(source.tolist()):
            here = source == j
            part = self._rows[j].batch(
                rows[here] - self._offsets[j],
                keys=None if keys is None else keys[here],
                corrupt=corrupt,
            )
            for name, array in batch.items():
                array[here] = part[name].reshape(-1, *array.shape[1:])
            for name in _NUMBERS & batch.keys():
                batch[name][here] += self._offsets[j]
        flat = {
            name: array.reshape(len(rows) * self.unit, *array.shape[2:])
            for name, array in batch.items()
        }
        return flat | {_SOURCE: np.repeat(source, self.unit).astype(np.int32)}

    def extra(self, prompt_ids: Int32[np.ndarray, "k"] | Sequence[int]) -> list[dict[str, Any]]:
        found = []
        for row in np.asarray(prompt_ids, np.int64).tolist():
            j = self._source_of(row)
            found += self._rows[j].extra([row - int(self._offsets[j])])
        return found

    def _source_of(self, row: int) -> int:
        return int(np.searchsorted(self._offsets, row, side="right")) - 1

    def explain(self, row: int) -> list[Span]:
        """The spans of one row; `mixed` is its source, "outer/inner" in a mixture of mixtures."""
        self._check(np.array([row]))
        j = self._source_of(row)
        return [
            dataclasses.replace(span, mixed="/".join(filter(None, (self._names[j], span.mixed))))
            for span in self._rows[j].explain(row - int(self._offsets[j]))
        ]

    def identity(self, place: int) -> Mapping[str, str]:
        """{"mixture": digest} of the stages that begin before `place` and what they mix."""
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
        """Place -> row of the mixture. seed=None: each source in the order of its own rows."""
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
            here = source == j
            rows[here] = self.draws[j](nth[here]) + self.offsets[j]
        return rows


def _derived(seed: int, name: str) -> int:
    """A seed of its own for each source, so that two of one length differ in their order."""
    return int.from_bytes(hashlib.sha256(f"mix/{seed}/{name}".encode()).digest()[:8], "little")


def _common_fields(sources: Mapping[str, Rows]) -> dict[str, tuple[np.dtype, tuple[int, ...]]]:
    """dtype and shape of a row in each array; ValueError unless all sources agree in them."""
    found = {
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
    first, *others = found
    for other in others:
        for what, value in found[first].items():
            if found[other][what] != value:
                raise ValueError(
                    f"the sources of a mixture must have the same {what}: got {value} in "
                    f"{first!r} and {found[other][what]} in {other!r}. Make their rows alike."
                )
    return found[first]["fields"]
