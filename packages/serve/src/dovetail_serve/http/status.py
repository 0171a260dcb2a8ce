# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Live figures of a server as one document: `GET /status`, which the status page polls."""

import time
from typing import Any

from dovetail_serve.http.metrics import stage_seconds
from dovetail_serve.http.stages import Stages, StageTimes
from dovetail_serve.serving.documents import server_metadata, version_state, version_statistics
from dovetail_serve.serving.server import Server, VersionState


def status_document(server: Server, stages: Stages, *, draining: bool) -> dict[str, Any]:
    """Returns the figures of the server and of every version.

    Times and counts are sums since the start; the page takes differences for rates.

    Args:
        server: The server.
        stages: Times and statuses of its HTTP layer.
        draining: A shutdown has begun.
    """
    return {
        "server": server_metadata()["version"],
        "time_s": time.time(),
        "live": server.live,
        "ready": server.ready and not draining,
        "draining": draining,
        "responses": {str(status): n for status, n in sorted(stages.responses.items())},
        "versions": [_version(server, stages, state) for state in server.index()],
    }


def _version(server: Server, stages: Stages, state: VersionState) -> dict[str, Any]:
    counts = version_statistics(server, state)
    times = stages.times.get((state.name, state.version), StageTimes())
    return {
        **version_state(state),
        "queued": counts.queued,
        "successes": counts.successes,
        "failures": dict(counts.failures),
        "rows": counts.rows,
        "batches": {str(size): number for size, number in counts.batches.items()},
        "http_requests": times.requests,
        "stages_s": stage_seconds(counts, times),
        "last_inference_s": counts.last_inference,
    }
