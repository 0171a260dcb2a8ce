# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Options of a server: `Batching`, how requests are joined; the checks of ports and TLS."""

import dataclasses
import math
import os
import ssl
from typing import Literal, get_args

from dovetail_serve import _elsewhere

Padding = Literal["min_cost", "next"]

# The plan for a batch takes time and memory in proportion to its rows.

_MAX_BATCH = 1 << 16


@_elsewhere.batching
@dataclasses.dataclass(frozen=True, kw_only=True)
class Batching:
    """Options for joining requests to one model into batches.

    An idle model runs a request at once. While it is busy, requests gather, and the next batch
    takes as many as fit. Only `max_delay_ms` makes an idle model wait.

    Args:
        max_batch: Largest number of rows in one batch, up to 65536. Default: the bundle's largest
            batch size. 1 turns batching off.
        max_delay_ms: Wait of an idle model for more rows, counted from the oldest arrival.
            A request whose deadline would pass meanwhile ends the wait.
        padding: "min_cost" runs the batch sizes with the smallest measured cost, possibly several
            in a row. "next" pads to the next size.
        queue: Largest number of waiting requests. One more is refused with `QueueFull`.
        timeout_ms: Deadline of a request without one. None: no deadline.
        split: Divide requests over several batches, so that batches are full and a request may
            have any number of rows; one of more than a batch takes turns with the others of its
            level. False keeps requests whole and refuses one with more rows than `max_batch`.
        priorities: Number of priority levels. 0 is served first. A level waits for as long as the
            levels before it have requests; only a deadline bounds that wait.

    Raises:
        TypeError: An option is of another type.
        ValueError: An option is out of range.
    """

    max_batch: int | None = None
    max_delay_ms: float = 0.0
    padding: Padding = "min_cost"
    queue: int = 256
    timeout_ms: float | None = None
    split: bool = True
    priorities: int = 1

    def __post_init__(self) -> None:
        if self.max_batch is not None:
            _check_count("max_batch", self.max_batch, "max_batch=1 to turn batching off")
            if self.max_batch > _MAX_BATCH:
                raise ValueError(
                    f"max_batch must be at most {_MAX_BATCH}, got max_batch={self.max_batch}; "
                    "leave it out for the bundle's largest batch size, since more gains nothing"
                )
        _check_count("queue", self.queue, "queue=256")
        _check_count("priorities", self.priorities, "priorities=2 for the levels 0 and 1")
        _check_time("max_delay_ms", self.max_delay_ms, "max_delay_ms=0.0 to run at once", least=0.0)
        if self.timeout_ms is not None:
            _check_time("timeout_ms", self.timeout_ms, "timeout_ms=None for no deadline")
        if self.padding not in get_args(Padding):
            raise ValueError(
                f'padding must be "min_cost" or "next", got padding={self.padding!r}; write '
                'padding="min_cost" for the smallest measured cost'
            )
        if not isinstance(self.split, bool):
            raise TypeError(
                f"split must be True or False, got split={self.split!r}; write split=True"
            )


def check_port(name: str, port: int) -> None:
    """Raises ValueError for a port that no socket has. gRPC would take its remainder by 65536."""
    if not 0 <= port <= 65535:
        raise ValueError(
            f"{name} must be a port from 0 to 65535, got {name}={port}; write {name}=0 for a "
            "free one"
        )


def check_tls(chain: str | os.PathLike[str], key: str | os.PathLike[str]) -> None:
    """Checks a certificate chain and its private key: the errors of ssl do not name the files.

    Raises:
        OSError: A file cannot be read.
        ValueError: They are not in PEM, do not belong together, or the key has a passphrase.
    """
    for path in (chain, key):
        with open(path, "rb"):
            pass
    came = f"got {os.fspath(chain)!r} and {os.fspath(key)!r}"

    def refuse() -> str:  # ssl would ask for it at the terminal
        raise ValueError(
            f"the key of tls must have no passphrase, {came}; write the key without one, with "
            f"openssl pkey -in {os.fspath(key)} -out plain.pem"
        )

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chain, key, password=refuse)
    except ssl.SSLError as error:
        reason = (error.reason or "unknown").replace("_", " ").lower()
        raise ValueError(
            f"tls must be a certificate chain and its own private key, both in PEM, {came}, which "
            f"OpenSSL refuses ({reason}); look at them with openssl x509 -text -in and openssl "
            "pkey -in"
        ) from error


def _check_count(name: str, value: object, example: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got {name}={value!r}; write {example}")
    if value < 1:
        raise ValueError(f"{name} must be 1 or more, got {name}={value!r}; write {example}")


def _check_time(name: str, value: object, example: str, *, least: float | None = None) -> None:
    """Raises unless `value` is finite and at least `least`, or above 0 if that is None."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(
            f"{name} must be a number of milliseconds, got {name}={value!r}; write {example}"
        )
    if not math.isfinite(value) or value < 0 or (least is None and value == 0):
        bound = "above 0" if least is None else f"{least:g} or more"
        raise ValueError(
            f"{name} must be finite and {bound}, in milliseconds, got {name}={value!r}; write "
            f"{example}"
        )
