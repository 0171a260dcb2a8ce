# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Terms of packed and separate documents agree; a trace names the steps of every family."""

import jax
import numpy as np
import optax
import pytest

from dovetail_kernels import attention
from dovetail_models import init, llama, mixtral
from dovetail_train import Trace, Trainer, lm_loss

VOCAB, LENGTH = 31, 12
SIZES = {"vocab_size": VOCAB, "embed": 16, "depth": 2, "heads": 4, "kv_heads": 2, "mlp": 24}
CONFIGS = {
    "llama": llama(**SIZES, max_length=LENGTH),
    "mixtral": mixtral(**SIZES, max_length=LENGTH, experts=4, top_k=2),
}
PIECES = [(5, 7), (3, 4, 5), (12,), (1, 10)]  # lengths of the documents of each row


def _batches():
    """The same documents packed in 4 rows and apart in 8 (the last padded by 2 empty rows)."""
    rng = np.random.default_rng(0)
    packed = {
        name: np.zeros((4, LENGTH), np.int32) for name in ("tokens", "targets", "segment_ids")
    }
    packed["mask"] = np.zeros((4, LENGTH), np.float32)
    apart = {name: np.zeros((8, LENGTH), x.dtype) for name, x in packed.items()}
    place = 0
    for row, lengths in enumerate(PIECES):
        start = 0
        for i, length in enumerate(lengths):
            document = {
                "tokens": rng.integers(0, VOCAB, length),
                "targets": rng.integers(0, VOCAB, length),
                "mask": (rng.random(length) < 0.7) + 0.0,
            }
            for name, values in document.items():
                packed[name][row, start : start + length] = values
                apart[name][place, :length] = values
            packed["segment_ids"][row, start : start + length] = i + 1
            apart["segment_ids"][place, :length] = 1
            start, place = start + length, place + 1
    assert place == 8
    return packed, apart


@pytest.mark.parametrize("kernel", [None, attention], ids=["default", "kernels"])
@pytest.mark.parametrize("family", CONFIGS)
def test_packed_documents_train_as_they_would_apart(family, kernel):
    mixture = family == "mixtral"
    loss = lm_loss(attention=kernel, z=1e-2, balance=mixture)
    weights = {"balance": 0.5} if mixture else {}
    trainer = Trainer(optax.sgd(1.0), loss, weights=weights, accumulate=2)
    found = []
    for batch in _batches():
        state = trainer.init(init(CONFIGS[family], seed=0))
        state, metrics = trainer.step(state, batch)
        found.append((metrics.read(), jax.tree.map(np.asarray, state.params)))
    (packed, params), (apart, others) = found
    assert packed.keys() == apart.keys()
    for name, value in packed.items():
        assert apart[name] == pytest.approx(value, rel=1e-5, abs=1e-7), name
    for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(others), strict=True):
        # Gradients of float32, summed over rows of other lengths.
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-6)


# jaxlib 0.12 aborts where its warning about the type of the statistics is an error.
@pytest.mark.filterwarnings("ignore:builtin type .* has no __module__:DeprecationWarning")
@pytest.mark.parametrize("family", CONFIGS)
def test_a_trace_numbers_the_steps_and_names_the_program(tmp_path, family):
    packed, _ = _batches()
    trainer, trace = Trainer(optax.adamw(1e-3), lm_loss()), Trace(tmp_path, start=1, steps=2)
    trainer.fit(init(CONFIGS[family], seed=0), [packed] * 5, steps=5, hooks=[trace])
    [file] = tmp_path.rglob("*.xplane.pb")
    planes = jax.profiler.ProfileData.from_file(str(file)).planes
    events = [event for plane in planes for line in plane.lines for event in line.events]
    assert [dict(e.stats)["step_num"] for e in events if e.name == "train"] == [2, 3]
    computed = [e for e in events if dict(e.stats).get("hlo_module") == "jit_train_step"]
    assert len({dict(event.stats)["run_id"] for event in computed}) == 2
