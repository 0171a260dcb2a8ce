# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Limits of each key: requests at a time, and tokens a minute.

Tokens come back at a constant rate. A request begins while one is left, since nobody knows how many
it will draw, and is answered whole. It may leave a debt, and the time until that is paid is known.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import math
from collections.abc import Sequence

from dovetail_infer.server.errors import ApiError


@dataclasses.dataclass(frozen=True, kw_only=True)
class KeyLimits:
    """Limits of each key, or of all requests together to a server without keys.

    Args:
        requests: Completions and chats at a time. None: no limit.
        tokens_per_minute: Tokens of prompts and answers. None: no limit.
    """

    requests: int | None = None
    tokens_per_minute: int | None = None

    def __post_init__(self) -> None:
        for name, value in dataclasses.asdict(self).items():
            if value is not None and value < 1:
                raise ValueError(
                    f"limits of keys must be at least 1, got {name}={value}; leave it out"
                )


class Account:
    """The use of one key. Times are seconds by one clock.

    Args:
        key: The key; "" for all requests to a server without keys.
        limits: Its limits.
        now: The present time.

    Attributes:
        name: The first 8 digits of the key's SHA-256, or "".
    """

    def __init__(self, key: str, limits: KeyLimits, now: float) -> None:
        self.secret, self._limits = key.encode(), limits
        self.name = hashlib.sha256(self.secret).hexdigest()[:8] if key else ""
        # The mean is that of ended requests; newer ones count more.
        self._running, self._mean_s, self._at = 0, 1.0, now
        self._left = self._size = float(limits.tokens_per_minute or 0)

    def begin(self, now: float) -> None:
        """Counts a request, which `end` must follow. Raises ApiError if a limit is reached."""
        most = self._limits.requests
        if most is not None and self._running >= most:
            raise _refused(
                f"requests of a key at a time must be at most {most}, got one more; send it after "
                "an answer",
                self._mean_s / most,
            )
        if self._size and self._fill(now) < 1:
            raise _refused(
                f"tokens of a key in a minute must be at most {self._size:.0f}, got a request "
                "after them; send it later",
                self._wait_s(1.0),
            )
        self._running += 1

    def end(self, seconds: float) -> None:
        """Ends a request that ran for some seconds."""
        self._running -= 1
        self._mean_s += (seconds - self._mean_s) / 8

    def spend(self, tokens: int, now: float) -> None:
        """Counts tokens of a request."""
        if self._size:
            self._left = self._fill(now) - tokens

    def headers(self, now: float) -> dict[str, str]:
        """Returns the headers of OpenAI's API that tell a client the tokens left."""
        if not self._size:
            return {}
        return {
            "x-ratelimit-limit-tokens": f"{self._size:.0f}",
            "x-ratelimit-remaining-tokens": str(max(0, math.floor(self._fill(now)))),
            "x-ratelimit-reset-tokens": f"{self._wait_s(self._size):.3f}s",
        }

    def _fill(self, now: float) -> float:
        """Returns the tokens left now."""
        self._left = min(self._size, self._left + (now - self._at) * self._size / 60)
        self._at = now
        return self._left

    def _wait_s(self, tokens: float) -> float:
        """Returns the seconds until so many are left."""
        return (tokens - self._left) * 60 / self._size


def account_of(authorization: str, accounts: Sequence[Account]) -> Account:
    """Returns the account of a header. Raises ApiError if it has none of the keys."""
    scheme, _, key = authorization.partition(" ")
    secret = key.encode("latin-1")
    # All are compared, in a time that does not depend on how much of one is right.
    same = [account for account in accounts if hmac.compare_digest(secret, account.secret)]
    if not accounts[0].secret:
        return accounts[0]
    if scheme.lower() != "bearer" or not same:
        raise ApiError(
            "a request must have one of the server's keys, got none or another; send the header "
            "Authorization: Bearer KEY",
            status=401,
            code="invalid_api_key",
        )
    return same[0]


def _refused(message: str, seconds: float) -> ApiError:
    return ApiError(message, status=429, code="rate_limit_exceeded", retry_after_s=seconds)
