# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import hashlib

import numpy as np
import pytest

from dovetail_infer.schedule.sequence import Sequence


def sequence(**changes):
    fields = {"request_id": 1, "ids": list(range(9)), "prompt_length": 9, "max_total": 12}
    return Sequence(**{**fields, **changes})


def digest(content):
    return hashlib.blake2b(content, digest_size=16).digest()


def test_digests_are_chained_from_the_namespace():
    first = digest(digest(b"v1") + np.arange(0, 4, dtype="<i4").tobytes())
    second = digest(first + np.arange(4, 8, dtype="<i4").tobytes())
    request = sequence(namespace=b"v1")
    assert request.digest(1, 4) == second
    assert request.digest(0, 4) == first


def test_a_digest_depends_on_the_namespace_and_on_every_earlier_token():
    base = sequence().digest(1, 4)
    assert sequence(namespace=b"v2").digest(1, 4) != base
    assert sequence(ids=[9, *range(1, 9)]).digest(1, 4) != base
    assert sequence(ids=[*range(8), 9]).digest(1, 4) == base


def test_another_namespace_starts_another_chain():
    request = sequence()
    request.digest(1, 4)
    request.namespace = b"v2"
    assert request.digest(1, 4) == sequence(namespace=b"v2").digest(1, 4)


def test_a_request_has_ended_when_its_pending_tokens_reach_the_total():
    assert not sequence(max_total=10).ended
    assert sequence(max_total=10, pending=1).ended
    assert not sequence(max_total=9).ended, "it reads its prompt and draws nothing"


@pytest.mark.parametrize("changes", [{"prompt_length": 0}, {"max_total": 8}, {"max_total": 21}])
def test_lengths_out_of_order_are_refused(changes):
    message = (
        r"1 <= prompt_length <= len\(ids\) <= max_total <= max_length, got .*max_length=20; pass"
    )
    with pytest.raises(ValueError, match=message):
        sequence(**changes).check(20)
