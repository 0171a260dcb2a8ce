# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`Answer`: outputs of a request, their version, and the time of each stage."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np


class Timing(NamedTuple):
    """Times of one request in seconds. Stages follow one another, so they sum to `total_s`.

    The stages of a divided request are summed over its batches. Time between them is `queue_s`.

    Attributes:
        queue_s: From arrival until its batch began.
        pad_s: Host function before the program, joining and padding of the batch.
        compute_s: The program, with the transfer of inputs and outputs.
        split_s: From the end of the program until the answer was there: division of the outputs,
            host function after the program, wake-up of the caller.
        rows: Rows of the request.
        batch_rows: Rows of all requests in its (last) batch.
        padded_rows: Rows of that batch with padding.
    """

    queue_s: float
    pad_s: float
    compute_s: float
    split_s: float
    rows: int
    batch_rows: int
    padded_rows: int

    @property
    def total_s(self) -> float:
        """Time from arrival to answer."""
        return self.queue_s + self.pad_s + self.compute_s + self.split_s


class Answer(NamedTuple):
    """Outputs of a request.

    Attributes:
        outputs: Arrays by name.
        model: Name of the model.
        version: Version that computed them.
        timing: Times of the stages.
    """

    outputs: Mapping[str, np.ndarray]
    model: str
    version: str
    timing: Timing
