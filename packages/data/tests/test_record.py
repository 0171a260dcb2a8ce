# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from dovetail_data.record import Raw


@pytest.mark.parametrize("vocab_size, itemsize", [(258, 2), (65_536, 2), (65_537, 4)])
def test_ids_come_back_from_the_smallest_layout(vocab_size, itemsize):
    ids = np.array([0, 1, 255, 256, vocab_size - 1], np.int32)
    codec = Raw.of(vocab_size)
    record = codec.encode(ids)
    assert len(record) == itemsize * 5
    assert record == b"".join(int(i).to_bytes(itemsize, "little") for i in ids)
    np.testing.assert_array_equal(codec.view(record), ids)


def test_an_empty_document_is_an_empty_record():
    codec = Raw.of(258)
    assert codec.encode(np.zeros(0, np.int32)) == b""
    assert codec.view(b"").shape == (0,)
