# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The bytes of each token id make an allow-mask; what is sampled under it has those bytes alone."""

import sysconfig
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dovetail_data import Bytes, records, text, train_bpe, vocabulary_bytes
from dovetail_kernels import adjust_logits, sample

TEXT = Path(sysconfig.get_paths()["stdlib"]) / "json"


@pytest.fixture(params=["bytes", "bpe"])
def tokenizer(request, tmp_path):
    if request.param == "bytes":
        return Bytes()
    words = (record["text"] for record in records(text(TEXT, pattern="*.py")))
    return train_bpe(words, tmp_path / "tokenizer.json", vocab_size=400)


def test_only_ids_of_the_allowed_bytes_are_sampled(tokenizer):
    of_ids = vocabulary_bytes(tokenizer)
    wanted = set(b"0123456789_abcdef")
    allowed = np.array([data is not None and set(data) <= wanted for data in of_ids])
    assert 0 < allowed.sum() < len(allowed)
    rows = 512
    logits = jax.random.normal(jax.random.key(0), (rows, len(of_ids)))
    masked = adjust_logits(logits, allowed=jnp.broadcast_to(allowed, logits.shape))
    ids = np.asarray(sample(masked, keys=jax.random.split(jax.random.key(1), rows)))
    assert allowed[ids].all()
    assert len(set(ids.tolist())) > allowed.sum() // 2  # and not one of them again and again
    decoded = tokenizer.decode(ids)
    assert set(decoded.encode()) <= wanted
    assert decoded.encode() == b"".join(of_ids[i] for i in ids.tolist())
