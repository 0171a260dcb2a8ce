# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The best interval between checkpoints.

A short interval spends its time on saving, a long one on repeating the steps since the last save.
"""

from __future__ import annotations

import math


def advised_interval_s(save_s: float, failure_s: float) -> float:
    """Computes the interval between two saves with the least expected wall time.

    With δ = `save_s` and M = `failure_s`, it is √(2δM) (1 + √(δ/2M)/3 + δ/18M) - δ for δ < 2M,
    else M. Failures are assumed to come at random, at a constant rate. The time of a restart has
    no influence.

    Args:
        save_s: Wait of the training for one save, in seconds.
        failure_s: Mean seconds between two failures of the whole job. A job of n hosts fails n
            times as often as one host.

    Returns:
        Seconds of training from the end of a save to the begin of the next.

    Raises:
        ValueError: An argument is not a number above 0.

    Source: J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart
    dumps", Future Generation Computer Systems 22 (2006), equation 37.
    """
    for name, seconds in (("save_s", save_s), ("failure_s", failure_s)):
        if not (math.isfinite(seconds) and seconds > 0):
            raise ValueError(
                f"{name} must be a number of seconds above 0, got {seconds}; write {name}=60.0"
            )
    if save_s >= 2 * failure_s:
        return failure_s
    ratio = save_s / (2 * failure_s)
    root = math.sqrt(2 * save_s * failure_s)
    return root * (1 + math.sqrt(ratio) / 3 + ratio / 9) - save_s
