# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The headline of real traces."""

import pytest

from dovetail_profile.page.headline import headline


def test_a_headline_has_wall_time_busy_share_steps_devices_and_versions(recordings):
    for version, recording in recordings.items():
        lines = dict(headline(recording))
        stats = recording.spaces[0].plane("Task Environment").stats
        wall_ns = stats["profile_stop_time"] - stats["profile_start_time"]
        assert lines["wall time"] == f"{wall_ns / 1e9:.3g} s"
        assert f"jax {version}" in lines["versions"]
        assert (lines["devices"], lines["host"]) == ("1 x CPU", recording.hosts[0])
        runs = recording.operations
        # A sweep: the device is busy while more runs have begun than ended.
        starts = [(int(start), 1) for start in runs.start_ps]
        edges = sorted(starts + [(int(t), -1) for t in runs.start_ps + runs.duration_ps])
        running = busy = last = 0
        for time, change in edges:
            busy += time - last if running else 0
            running, last = running + change, time
        share = float(lines["devices busy"].strip("%"))
        assert share == pytest.approx(busy / wall_ns / 10, abs=0.051)  # of one digit
        numbers = sorted(set(recording.spans.step[recording.spans.step >= 0].tolist()))
        assert lines["steps"] == f"{len(numbers)} ({numbers[0]} to {numbers[-1]})"
