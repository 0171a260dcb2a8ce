# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""`Stages`: the time that the protocol adds to requests, by model and version."""

import dataclasses

from dovetail_serve.serving.answer import Timing


@dataclasses.dataclass(slots=True)
class StageTimes:
    """Sums over the answered requests of one version.

    Attributes:
        requests: Number of requests.
        decode_s: From the end of the body until the request arrived in the queue: decompression,
            parsing, checks.
        encode_s: From the answer until the response was sent.
    """

    requests: int = 0
    decode_s: float = 0.0
    encode_s: float = 0.0


class Stages:
    """Times of decoding and encoding, and the number of responses by status."""

    def __init__(self) -> None:
        self.times: dict[tuple[str, str], StageTimes] = {}
        self.responses: dict[int, int] = {}

    def answered(self, model: str, version: str, decode_s: float, encode_s: float) -> None:
        """Adds an answered request.

        Args:
            model, version: Names of the model and of its version.
            decode_s, encode_s: Seconds to decode the request and to encode the answer.
        """
        times = self.times.get((model, version))
        if times is None:
            times = self.times[model, version] = StageTimes()
        times.requests += 1
        times.decode_s += decode_s
        times.encode_s += encode_s

    def responded(self, status: int) -> None:
        """Counts a response; status 499 for a client that went away."""
        self.responses[status] = self.responses.get(status, 0) + 1


def server_timing(decode_s: float, timing: Timing, encode_s: float) -> bytes:
    """Returns the header Server-Timing: stages in milliseconds, to the microsecond.

    Args:
        decode_s, encode_s: Seconds to decode the request and to encode the answer.
        timing: Times of the other stages.
    """
    stages = {
        "decode": decode_s,
        "queue": timing.queue_s,
        "pad": timing.pad_s,
        "compute": timing.compute_s,
        "split": timing.split_s,
        "encode": encode_s,
    }
    return ", ".join(f"{name};dur={s * 1e3:.3f}" for name, s in stages.items()).encode()
