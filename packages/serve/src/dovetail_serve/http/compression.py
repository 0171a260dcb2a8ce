# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Content-Encoding of requests and Accept-Encoding of responses: gzip and deflate.

The size of a decompressed body has a bound, because a few kilobytes can hold gigabytes.
"""

import re
import zlib

from dovetail_serve.errors import RequestError, TooLarge

# Window bits of zlib for the format of each encoding. "deflate" is zlib's own format (RFC 9110).
_FORMATS = {"gzip": 31, "deflate": 15}
# Smaller responses gain nothing; larger bodies are worked on outside of the event loop.
COMPRESS_FROM_BYTES = 1024
THREAD_FROM_BYTES = 64 << 10
# Fast rather than small: the client and the server usually share a network.
_LEVEL = 1
_WEIGHTED = re.compile(r"\s*([\w*-]+)\s*(?:;\s*q\s*=\s*([01](?:\.\d{0,3})?)\s*)?")


def decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """Returns the body of a request without its compression.

    Args:
        body: The body as it came.
        encoding: Content-Encoding: "gzip", "deflate" or "identity".
        limit: Largest size of the result in bytes.

    Raises:
        RequestError: The encoding is unknown, or the body is not of it.
        TooLarge: The result is larger than `limit`.
    """
    encoding = encoding.strip().lower()
    if encoding in ("", "identity"):
        return body
    if encoding not in _FORMATS:
        raise RequestError(
            f"Content-Encoding must be gzip, deflate or identity, got {encoding[:40]!r}; send the "
            "body without compression"
        )
    stream = zlib.decompressobj(_FORMATS[encoding])
    try:
        result = stream.decompress(body, limit + 1)
    except zlib.error as error:
        raise RequestError(
            f"the body must be of Content-Encoding {encoding}, got {len(body)} bytes that are not: "
            f"{error}; send it without the header"
        ) from None
    if len(result) > limit:
        raise TooLarge(
            f"a body must have at most {limit} bytes when decompressed, got {len(body)} bytes of "
            f"{encoding} with more; send fewer rows"
        )
    if not stream.eof or stream.unused_data:
        ending = f"{len(stream.unused_data)} bytes after its end" if stream.eof else "no end"
        raise RequestError(
            f"the body must be one stream of Content-Encoding {encoding}, got {len(body)} bytes "
            f"with {ending}; compress the whole body at once"
        )
    return result


def accepted(header: str) -> str | None:
    """Returns the encoding for a response: "gzip", "deflate" or None, by Accept-Encoding."""
    weights: dict[str, float] = {}
    for entry in header.lower().split(","):
        match = _WEIGHTED.fullmatch(entry)
        if match:
            weights[match[1]] = float(match[2] or 1)
    offers = [name for name in _FORMATS if weights.get(name, weights.get("*", 0.0)) > 0]
    return max(offers, key=lambda name: weights.get(name, weights.get("*", 0.0)), default=None)


def compress(body: bytes, encoding: str) -> bytes:
    """Returns `body` compressed with "gzip" or "deflate"."""
    stream = zlib.compressobj(_LEVEL, wbits=_FORMATS[encoding])
    return stream.compress(body) + stream.flush()
