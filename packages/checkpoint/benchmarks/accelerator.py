# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Steps of the accelerator session: saving, verified restoring, and digests."""

from accelerator_step import Step

STEPS = (
    Step(
        name="save-restore",
        run="device_saving:save_restore",
        order=45,
        limit_s=240,
        full={"leaves": 16, "leaf_bytes": 2**27, "repeats": 3},
        tiny={"leaves": 3, "leaf_bytes": 2**14, "repeats": 1},
    ),
    Step(
        name="digest",
        run="device_saving:digests",
        order=46,
        limit_s=90,
        full={"leaves": 4, "leaf_bytes": 2**29, "chain": 10},
        tiny={"leaves": 2, "leaf_bytes": 2**14, "chain": 2},
        proves=("digests that find flipped bits",),
    ),
)
