# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import VOCAB, rows_of
from flax import nnx

from dovetail_tune import with_teacher
from dovetail_tune.fields import teacher
from dovetail_tune.testing import TinyDecoder


@pytest.fixture(scope="module")
def model():
    return TinyDecoder(soft_cap=2.0, rngs=nnx.Rngs(1))


def _expected(model, batch, k):
    options = {name: jnp.asarray(batch[name]) for name in ("positions", "segment_ids")}
    x = np.asarray(model.features(jnp.asarray(batch["tokens"]), **options)[0], np.float64)
    weight, cap = model.head_weight()
    logits = cap * np.tanh(x @ np.asarray(weight, np.float64) / cap)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    ids = np.argsort(-log_p, axis=-1)[..., :k]
    counts = batch["mask"][..., None] > 0
    logps = np.take_along_axis(log_p, ids, axis=-1)
    return np.where(counts, ids, 0), np.where(counts, logps, 0)


@pytest.mark.thorough
@pytest.mark.parametrize("k", [1, 5, VOCAB])
def test_top_k_equals_float64(model, k):
    batch = rows_of(rows=3, length=11, seed=1)
    fields = next(with_teacher([batch], model, k=k, field="large"))
    ids, logps = _expected(model, batch, k)
    assert fields["large_ids"].dtype == np.int32
    assert fields["large_logps"].dtype == np.float32
    np.testing.assert_array_equal(fields["large_ids"], ids)
    # 32 logits of float32, from features that both share.
    np.testing.assert_allclose(fields["large_logps"], logps, rtol=2e-6, atol=2e-6)


def test_values_are_kept(model, tmp_path):
    batches = [rows_of(rows=3, length=11, seed=i) for i in range(2)]
    first = with_teacher(batches, model, tmp_path, k=4)
    computed = list(first)
    again = with_teacher(batches[::-1], model, tmp_path, k=4)
    for own, batch in zip(again, computed[::-1], strict=True):
        for name in ("teacher_ids", "teacher_logps"):
            assert own[name].tobytes() == batch[name].tobytes()
    assert first.counts() == {"rows": 6, "computed": 6, "runs": 2, "without_answer": 0}
    assert again.counts() == {"rows": 6, "computed": 0, "runs": 0, "without_answer": 0}
    with pytest.raises(ValueError, match=r"must have the columns .*5\].*, got .*4\].*; pass"):
        with_teacher(batches, model, tmp_path, k=5)


@pytest.mark.thorough
def test_memory_does_not_grow_with_the_logits():
    model = TinyDecoder(vocab_size=4096, width=8, depth=0, rngs=nnx.Rngs(0))
    graph, state = nnx.split(model)

    def temporaries(length):
        batch = rows_of(rows=1, length=length, vocab=4096)
        top = functools.partial(teacher._top, k=2)
        program = jax.jit(lambda state, batch: top(nnx.merge(graph, state), batch))
        return program.lower(state, batch).compile().memory_analysis().temp_size_in_bytes

    # A chunk has 1024 positions of 16 KiB. Each further position adds features, ids and sums.
    assert temporaries(4096) - temporaries(2048) < 2048 * 1000


@pytest.mark.parametrize("k", [0, -1])
def test_k_below_1(model, k):
    with pytest.raises(ValueError, match=rf"k must be at least 1 .*, got k={k}; pass"):
        with_teacher([rows_of(rows=2)], model, k=k)


def test_k_above_the_vocabulary(model):
    with pytest.raises(ValueError, match=r"at most the vocabulary .*, got k=33 with 32 ids; pass"):
        next(with_teacher([rows_of(rows=2)], model, k=33))
