# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The self test of a model: each program computes the rows of the example.

A wrong program for one number of rows answers some requests alone, so each program is run. Rows
of the example fill its batches: all of them in order, then a random choice. A program that is wrong
at one place of a batch, or that takes one row for another, then differs from the stored results.

The program with the number of rows of the stored results must compute them within the tolerance of
`golden.compare`. Another one may differ from it by as much as rounding explains.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Any

import jax
import numpy as np

from dovetail_serve.bundle.folder import Folder
from dovetail_serve.bundle.golden import PRECOMPILED, Comparison, SelfTest, compare
from dovetail_serve.bundle.manifest import Manifest
from dovetail_serve.bundle.rounding import Arrays, explained, nudged
from dovetail_serve.errors import BundleError, IntegrityError
from dovetail_serve.loading.programs import options_of, program_of, rounding_of

Run = Callable[[Arrays, int | None], Arrays]

# The symbolic program is run with no fewer: one wrong from the third row on must fail.
_LEAST_ROWS = 3
_SEED = 0


def compiled(
    manifest: Manifest,
    compile: Callable[[int | None], Any],
    *,
    precompiled: Set[int | None] = frozenset(),
) -> dict[int | None, Any]:
    """Compiles the programs of a bundle; first the one for the rows of the example.

    Args:
        manifest: Of the bundle.
        compile: Returns the program for a number of rows.
        precompiled: Numbers of rows whose program `compile` has taken from a sidecar. If all are,
            nothing is compiled: the symbolic program is left out.

    Returns:
        Programs by number of rows; None without a batch axis. The symbolic program has a number
        that no other has. It is left out if this JAX cannot read it, which `compile` logs.
    """
    sizes = manifest.batch_sizes
    if not sizes:
        return {None: compile(None)}
    count = manifest.golden.rows or 1
    reference = next((size for size in sizes if size >= count), sizes[-1])
    programs: dict[int | None, Any] = {size: compile(size) for size in (reference, *sizes)}
    if manifest.symbolic is not None or precompiled >= programs.keys():
        return programs
    least = min(max(count, _LEAST_ROWS), sizes[-1] + 1)
    rows = next(rows for rows in itertools.count(least) if rows not in sizes)
    try:
        programs[rows] = compile(rows)
    except IntegrityError:
        raise
    except BundleError:
        return programs
    return programs


class Programs:
    """The programs of a loaded model, to be compared with the example.

    Args:
        folder: The bundle.
        platform: Name of the platform.
        example: Inputs and stored outputs of the example.
        weights: The weights on their devices.
        compiled: Programs by number of rows. The first one is for the rows of the example.
        precompiled: Numbers of rows whose program is from the sidecar.
    """

    def __init__(
        self,
        folder: Folder,
        platform: str,
        *,
        example: tuple[Arrays, Arrays],
        weights: Mapping[str, jax.Array],
        compiled: Mapping[int | None, Any],
        precompiled: Set[int | None],
    ) -> None:
        self._folder, self._platform = folder, platform
        self._weights, self._compiled = weights, compiled
        self._precompiled = precompiled
        self._reference = next(iter(compiled))
        self._inputs, self._stored = example

    def self_test(self) -> SelfTest:
        """Compares each program, and stops at the first that differs."""
        golden = self._folder.manifest.golden
        outputs: dict[str, Comparison] = {}
        tested = []
        for rows in self._compiled:
            tested.append(self._file(rows))
            for name, comparison in self._comparisons(rows).items():
                known = outputs.setdefault(name, comparison)
                if not comparison.passed or comparison.difference > known.difference:
                    outputs[name] = comparison
            if not all(comparison.passed for comparison in outputs.values()):
                break
        return SelfTest(
            platform=self._platform,
            stored_platform=golden.platform,
            outputs=outputs,
            programs=tuple(tested),
        )

    def _comparisons(self, rows: int | None) -> dict[str, Comparison]:
        """Returns the comparison of each output of one program with the stored values."""
        manifest, order = self._folder.manifest, self._order(rows)
        results = self._results(self._run, rows, order)
        compared = compare(
            results,
            _take(self._stored, order),
            platform=self._platform,
            stored_platform=manifest.golden.platform,
            rounding=manifest.platform(self._platform).weights,
            program=self._name(rows),
        ).outputs
        if rows == self._reference or all(each.passed for each in compared.values()):
            return dict(compared)
        by_rounding = self._explained(results, order, program=self._name(rows))
        return {
            name: comparison if comparison.passed else by_rounding[name]
            for name, comparison in compared.items()
        }

    def _explained(
        self, results: Arrays, order: np.ndarray | None, *, program: str
    ) -> Mapping[str, Comparison]:
        """Compares results with those of the first program here, within rounding of both."""
        rounding = rounding_of(self._folder, self._platform, self._reference)
        platform = self._platform
        # Accelerators may round products of float32 to TF32 or bfloat16.
        if rounding is not None and platform != "cpu":
            rounding = max(rounding, "bfloat16", key=lambda name: jax.numpy.finfo(name).eps)

        def reference(run: Run) -> Arrays:
            own = self._order(self._reference)
            return _take(self._results(run, self._reference, own), order)

        first = reference(self._run)

        def compared(others: Arrays) -> Mapping[str, Comparison]:
            return compare(
                others,
                first,
                platform=platform,
                stored_platform=platform,
                rounding=rounding,
                program=program,
            ).outputs

        def moved(seed: int) -> Arrays:
            return reference(self._nudged(rounding, seed))

        return explained(compared, results, None if rounding is None else moved)

    def _nudged(self, rounding: str | None, seed: int) -> Run:
        """Returns a run with weights and inputs changed by a rounding error each."""
        with options_of(self._folder.manifest):
            moved = nudged(self._weights, rounding, seed=seed)
            weights = {
                # In the layout that the program takes. JAX's stubs lack the attribute.
                name: jax.device_put(array, self._weights[name].format)  # type: ignore[attr-defined]
                for name, array in moved.items()
            }

        def run(inputs: Arrays, rows: int | None) -> Arrays:
            with options_of(self._folder.manifest):
                changed = nudged(inputs, rounding, seed=seed, first=len(weights))
            arrays = {name: np.asarray(array) for name, array in changed.items()}
            return self._run(arrays, rows, weights)

        return run

    def _run(
        self, inputs: Arrays, rows: int | None, weights: Mapping[str, jax.Array] | None = None
    ) -> Arrays:
        with options_of(self._folder.manifest):
            outputs = self._compiled[rows](weights or self._weights, dict(inputs))
            return {name: np.asarray(value) for name, value in outputs.items()}

    def _order(self, rows: int | None) -> np.ndarray | None:
        """Returns rows of the example for whole batches, each row at least once."""
        if rows is None:
            return None
        count = self._folder.manifest.golden.rows or 1
        others = np.random.default_rng(_SEED).integers(count, size=-count % rows)
        return np.concatenate([np.arange(count), others])

    def _results(self, run: Run, rows: int | None, order: np.ndarray | None) -> Arrays:
        if rows is None or order is None:
            return run(self._inputs, None)
        batches = [run(_take(self._inputs, each), rows) for each in _batches(order, rows)]
        return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}

    def _file(self, rows: int | None) -> str:
        return program_of(self._folder.manifest, self._platform, rows).file

    def _name(self, rows: int | None) -> str:
        if rows in self._precompiled:
            return f"{PRECOMPILED} for {rows or 'all'} rows"
        return self._file(rows)


def _batches(order: np.ndarray, rows: int) -> Iterator[np.ndarray]:
    for start in range(0, len(order), rows):
        yield order[start : start + rows]


def _take(arrays: Arrays, rows: np.ndarray | None) -> dict[str, np.ndarray]:
    return {name: array if rows is None else array[rows] for name, array in arrays.items()}
