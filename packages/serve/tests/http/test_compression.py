# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Compressed bodies have a bound on what they unpack to."""

import gzip
import zlib

import pytest

from dovetail_serve.errors import RequestError, TooLarge
from dovetail_serve.http.compression import accepted, compress, decompress

BODY = b"0123456789" * 7


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_bodies_round_trip(encoding):
    packed = compress(BODY, encoding)
    assert packed != BODY
    assert decompress(packed, encoding.upper(), 70) == BODY
    reader = gzip.decompress if encoding == "gzip" else zlib.decompress
    assert reader(packed) == BODY


def test_identity_is_no_compression():
    assert decompress(BODY, "identity", 1) == BODY
    assert decompress(BODY, " ", 1) == BODY


@pytest.mark.thorough
def test_a_bomb_is_refused_before_it_unpacks():
    bomb = zlib.compress(bytes(50 << 20))
    with pytest.raises(
        TooLarge, match=r"at most 69 bytes .*, got \d+ bytes of gzip .*; send fewer"
    ):
        decompress(gzip.compress(BODY), "gzip", 69)
    with pytest.raises(TooLarge, match="at most 1000 bytes"):
        decompress(bomb, "deflate", 1000)


@pytest.mark.parametrize(
    ("body", "encoding", "message"),
    [
        (BODY, "gzip", "must be of Content-Encoding gzip, got 70 bytes that are not: .*; send it"),
        (gzip.compress(BODY), "deflate", "must be of Content-Encoding deflate"),
        (gzip.compress(BODY)[:-1], "gzip", r"one stream .*, got \d+ bytes with no end; compress"),
        (gzip.compress(BODY) + b"x", "gzip", "with 1 bytes after its end; compress the whole"),
        (b"", "gzip", "with no end"),
        (BODY, "br", "must be gzip, deflate or identity, got 'br'; send the body without"),
        (BODY, "gzip, gzip", "got 'gzip, gzip'"),
    ],
)
def test_other_bodies_are_refused(body, encoding, message):
    with pytest.raises(RequestError, match=message):
        decompress(body, encoding, 1000)


@pytest.mark.parametrize(
    ("header", "encoding"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("deflate, gzip", "gzip"),
        ("gzip;q=0.2, deflate;q=0.7", "deflate"),
        ("GZIP ; Q=0.5", "gzip"),
        ("gzip;q=0", None),
        ("*", "gzip"),
        ("gzip;q=0, *", "deflate"),
        ("identity, br", None),
        ("", None),
        ("gzip;q=nonsense", None),
    ],
)
def test_the_heaviest_encoding_is_taken(header, encoding):
    assert accepted(header) == encoding
