# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The self test of a model: results of the example on this device against the stored ones.

A bundle with every byte intact can still compute other values: another compiler, another
device, a broken one. Floating-point results are compared relative to the largest magnitude of the
output, since rounding errors of a sum grow with its terms and not with its value.

Fill values, such as the -1e9 of a masked logit, are no results. One of them would be the largest
magnitude, and any other weights would pass beside it. They are compared with themselves, and the
scale of the others is the largest magnitude without them.
"""

import dataclasses
from collections.abc import Mapping

import jax
import numpy as np

from dovetail_serve.bundle.manifest import GOLDEN
from dovetail_serve.errors import IntegrityError

# Tolerances on the platform that computed the stored results. They allow sums in another order:
# about 1,000 epsilons of float32, 4 of bfloat16, which intermediate results may have too.
_SAME = {"float64": 1e-9, "complex128": 1e-9, "float32": 1e-4, "complex64": 1e-4}
_HALF = 3e-2
# Elsewhere products of float32 may be of TF32 (11 bits) or bfloat16 (8 bits), unless asked.
_OTHER = {"float64": 1e-9, "complex128": 1e-9, "float32": 2e-2, "complex64": 2e-2}
# A floating-point tie that falls to the other side moves an integer: an argmax, a rounding.
_OTHER_INTEGERS = 0.01

# How `Comparison.program` names a program of the sidecar.
PRECOMPILED = "the precompiled program"

# Fill values are at least this large, 100 times everything below them, and alike to 5 %. The usual
# ones are -1e4, -65504, -1e9 and the smallest number of the dtype, plus a logit at times. The first
# bound leaves out probabilities, where 0.999 beside 1e-6 is a result. With a smaller ratio the
# tolerance of float32 still finds other weights: 1e-4 of the fill value is 1e-2 of the rest.
_FILL, _FILL_RATIO, _FILL_SPREAD = 1e3, 100.0, 0.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """One output of the example against its stored values.

    Attributes:
        difference: Largest difference over the largest stored magnitude without fill values
            (absolute where all stored values are 0), or of a fill value over itself; for integers
            and bools the fraction of differing elements. NaN equals NaN, infinities equal
            themselves; infinity otherwise.
        tolerance: Largest accepted difference.
        program: The program that computed the output; empty for another origin.
    """

    difference: float
    tolerance: float
    program: str = ""

    @property
    def passed(self) -> bool:
        """Whether the difference is within the tolerance."""
        return self.difference <= self.tolerance


@dataclasses.dataclass(frozen=True, kw_only=True)
class SelfTest:
    """The result of a self test.

    Attributes:
        platform: Platform of the results computed now.
        stored_platform: Platform of the stored results.
        outputs: The comparisons by output: of the program that failed, or of the one with the
            largest difference.
        programs: Files of the programs that were compared.
    """

    platform: str
    stored_platform: str
    outputs: Mapping[str, Comparison]
    programs: tuple[str, ...] = ()

    def check(self) -> None:
        """Raises IntegrityError for the first output out of tolerance."""
        for name, comparison in self.outputs.items():
            if not comparison.passed:
                program = f" by {comparison.program}" if comparison.program else ""
                elsewhere = self.platform != self.stored_platform
                advice = f"export the bundle {'on this platform' if elsewhere else 'again'}"
                if comparison.program.startswith(PRECOMPILED):
                    advice = "run precompile again"
                raise IntegrityError(
                    f"output {name!r} of the example must be within {comparison.tolerance:.1e} of "
                    f"its stored values on {self.platform!r} (they are from "
                    f"{self.stored_platform!r}), got a difference of "
                    f"{comparison.difference:.3e}{program}; {advice}, or load "
                    "it with verify='files' to accept other results",
                    file=GOLDEN,
                    array=f"outputs.{name}",
                )


def compare(
    computed: Mapping[str, np.ndarray],
    stored: Mapping[str, np.ndarray],
    *,
    platform: str,
    stored_platform: str,
    rounding: str | None = None,
    program: str = "",
) -> SelfTest:
    """Compares outputs with the stored ones.

    Args:
        computed: Outputs by name, computed here.
        stored: Outputs by name, of equal shapes and dtypes.
        platform: Platform of `computed`.
        stored_platform: Platform of `stored`.
        rounding: Dtype to which weights or intermediate results behind `computed` were rounded, or
            None for that of the outputs.
        program: The program that computed `computed`.

    Returns:
        The comparison of each output. Call `check` to raise for a failure.
    """
    same = platform == stored_platform
    outputs = {
        name: Comparison(
            difference=_difference(computed[name], values),
            tolerance=tolerance(values.dtype, same_platform=same, rounding=rounding),
            program=program,
        )
        for name, values in stored.items()
    }
    return SelfTest(platform=platform, stored_platform=stored_platform, outputs=outputs)


def tolerance(dtype: np.dtype, *, same_platform: bool, rounding: str | None = None) -> float:
    """Returns the largest accepted difference of an output.

    Args:
        dtype: Dtype of the output.
        same_platform: Whether the stored values are from the same platform.
        rounding: As for `compare`. It counts like the dtype of an output.
    """
    if not jax.numpy.issubdtype(dtype, np.inexact):
        return 0.0 if same_platform and rounding is None else _OTHER_INTEGERS
    if rounding is not None:
        rounded = tolerance(jax.numpy.dtype(rounding), same_platform=same_platform)
        return max(rounded, tolerance(dtype, same_platform=same_platform))
    if (bits := jax.numpy.finfo(dtype).bits) < 16:
        # Two neighbouring values of 8 bits or fewer.
        return max(_HALF, 2 * float(jax.numpy.finfo(dtype).eps))
    if bits == 16:
        return _HALF
    return (_SAME if same_platform else _OTHER)[dtype.name]


def _difference(computed: np.ndarray, stored: np.ndarray) -> float:
    if stored.size == 0:
        return 0.0
    if not jax.numpy.issubdtype(stored.dtype, np.inexact):
        return float(np.mean(computed != stored))
    wide = np.complex128 if np.issubdtype(stored.dtype, np.complexfloating) else np.float64
    a, b = computed.astype(wide), stored.astype(wide)
    equal = (a == b) | (np.isnan(a) & np.isnan(b))
    finite = np.isfinite(a) & np.isfinite(b)
    if not (equal | finite).all():
        return float("inf")
    magnitudes = np.abs(b[finite])
    scale = _scale(magnitudes)
    # Above the scale are fill values alone, and each is its own scale.
    with np.errstate(over="ignore"):  # two values near the bound of float64, of unlike signs
        differences = np.abs(a[finite] - b[finite]) / np.maximum(magnitudes, scale)
    return float(differences.max(initial=0.0))


def _scale(magnitudes: np.ndarray) -> float:
    """Returns the largest magnitude without fill values, or 1.0 if all are 0."""
    largest = float(magnitudes.max(initial=0.0))
    while largest >= _FILL:
        others = magnitudes[magnitudes < (1 - _FILL_SPREAD) * largest]
        below = float(others.max(initial=0.0))
        if not 0.0 < below <= largest / _FILL_RATIO:
            break
        largest = below
    return largest or 1.0
