# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The headline of a profile: how long, how busy, on what."""

import re

import numpy as np

from dovetail_profile.trace.operations import union_ps
from dovetail_profile.trace.recording import Recording

_DEVICE = re.compile(r"/device:([A-Z]+):\d+")


def headline(recording: Recording) -> list[tuple[str, str]]:
    """Returns names and values as text, without unknown ones."""
    runs, hosts = recording.operations, recording.hosts
    devices = sorted(set(zip(runs.host.tolist(), runs.device.tolist(), strict=True)))
    wall_s = max(_wall_s(recording, host) for host in range(len(hosts)))
    lines = [("wall time", f"{wall_s:.3g} s")]
    if wall_s and devices:
        busy = [_busy_s(recording, *device) / wall_s for device in devices]
        spread = f" ({min(busy):.1%} to {max(busy):.1%})" if len(busy) > 1 else ""
        lines.append(("devices busy", f"{np.mean(busy):.1%}{spread}"))
    steps = np.unique(recording.spans.step[recording.spans.step >= 0])
    if len(steps):
        lines.append(("steps", f"{len(steps)} ({steps[0]} to {steps[-1]})"))
    kinds, versions = set(), set()
    for plane in (plane for space in recording.spaces for plane in space.planes):
        if match := _DEVICE.fullmatch(plane.name):  # a model, or else "GPU" or "TPU"
            kinds.add(str(plane.stats.get("device_type_string", match[1])))
        for name in ("jax", "jaxlib") if plane.name == "/host:metadata" else ():
            if version := plane.stats.get(f"{name}_version"):
                versions.add(f"{name} {version}")
    if devices:
        lines.append(("devices", f"{len(devices)} x {', '.join(sorted(kinds or {'CPU'}))}"))
    if versions:
        lines.append(("versions", ", ".join(sorted(versions))))
    return [*lines, ("host" if len(hosts) == 1 else "hosts", ", ".join(hosts))]


def _wall_s(recording: Recording, host: int) -> float:
    """Returns the time between the start and the stop of the trace of a host."""
    plane = recording.spaces[host].plane("Task Environment")
    stats = plane.stats if plane else {}
    start, stop = stats.get("profile_start_time", 0), stats.get("profile_stop_time", 0)
    if isinstance(start, int) and isinstance(stop, int) and stop > start > 0:
        return (stop - start) / 1e9
    bounds = [np.zeros(0, np.int64)]
    for events in (recording.operations, recording.spans):
        mask = events.host == host
        bounds += [events.start_ps[mask], (events.start_ps + events.duration_ps)[mask]]
    return float(np.ptp(np.concatenate(bounds))) / 1e12 if any(map(len, bounds)) else 0.0


def _busy_s(recording: Recording, host: int, device: int) -> float:
    runs = recording.operations
    mask = (runs.host == host) & (runs.device == device)
    start, stop = union_ps(runs.start_ps[mask], (runs.start_ps + runs.duration_ps)[mask])
    return float((stop - start).sum()) / 1e12
