# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A decoder's state is an item of a checkpoint, with or without a mesh."""

import numpy as np
import pytest
from flax import nnx

from dovetail_checkpoint import Store
from dovetail_models import abstract, init, llama

SHAPE = {"vocab_size": 90, "embed": 24, "depth": 2, "heads": 4, "kv_heads": 2}


def test_a_decoder_comes_back_bit_for_bit_and_runs(tmp_path):
    config = llama(**SHAPE, mlp=40)
    model = init(config, seed=0)
    tokens = np.random.default_rng(0).integers(0, 90, (2, 7)).astype(np.int32)
    with Store(tmp_path) as store:
        store.save(3, model=nnx.state(model, nnx.Param))
    other = init(config, seed=1)
    with Store(tmp_path) as store:
        step, items = store.restore(model=nnx.state(abstract(config), nnx.Param))
    nnx.update(other, items["model"])
    assert step == 3
    np.testing.assert_array_equal(other(tokens), model(tokens))


def test_a_decoder_of_another_shape_is_refused_with_both_shapes(tmp_path):
    with Store(tmp_path) as store:
        store.save(1, model=nnx.state(init(llama(**SHAPE, mlp=40), seed=0), nnx.Param))
        store.wait()
        target = nnx.state(abstract(llama(**SHAPE, mlp=48)), nnx.Param)
        with pytest.raises(ValueError, match=r"layers.*mlp.*gate") as refused:
            store.restore(model=target)
    assert "24, 40" in str(refused.value)
    assert "24, 48" in str(refused.value)
