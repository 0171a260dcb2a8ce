# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A decoder to train beside a frozen one, which a planner of memory can configure."""

from dovetail_models import Decoder, Remat
from dovetail_tune import Twin


class DecoderTwin(Twin):
    """A `dovetail_tune.Twin` of decoders.

    `dovetail_train.estimate` proposes recomputation for models that have `configure`.
    """

    trained: Decoder
    frozen: Decoder

    def configure(
        self, *, scan: bool | None = None, remat: Remat | bool | None = None
    ) -> "DecoderTwin":
        """Returns both over the same parameters, the trained one with other options."""
        return DecoderTwin(self.trained.configure(scan=scan, remat=remat), self.frozen)
