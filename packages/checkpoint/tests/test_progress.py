# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
from dovetail_checkpoint.proof.progress import counter


def test_parts_add_up_and_the_beginning_is_told():
    told = []
    done = counter(
        lambda done_bytes, total_bytes: told.append((done_bytes, total_bytes)), total_bytes=9
    )
    for part_bytes in (4, 0, 5):
        done(part_bytes)
    assert told == [(0, 9), (4, 9), (4, 9), (9, 9)]


def test_nothing_to_do_is_not_told():
    told = []
    counter(lambda *bytes_: told.append(bytes_), total_bytes=0)(0)
    assert told == []


def test_nobody_need_listen():
    counter(None, total_bytes=3)(3)
