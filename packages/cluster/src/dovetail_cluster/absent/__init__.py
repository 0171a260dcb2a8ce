# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Programs compiled for devices that are absent.

- `devices`: TPU slices, GPUs or CPU devices by name
- `compiled`: memory, collectives, launches of a GPU and times of a program, or the compiler's
  refusal
- `search`: the same for several choices, ranked
"""

from dovetail_cluster.absent.compiled import Compiled, compiled
from dovetail_cluster.absent.count import Traffic
from dovetail_cluster.absent.launches import ArrayCopy
from dovetail_cluster.absent.search import search
from dovetail_cluster.absent.targets import Devices, devices

__all__ = ["ArrayCopy", "Compiled", "Devices", "Traffic", "compiled", "devices", "search"]
