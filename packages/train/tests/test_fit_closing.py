# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The end of a run that failed: everything is closed, and no other process is waited for."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_train import Trainer


class Open:
    """A hook, a sink or a store; the end of each is counted."""

    every, closed, waited = 2, 0, 0

    def __call__(self, trainer, state, step):
        return {}

    def write(self, step, scalars):
        pass

    def save(self, step, **items):
        pass

    def restore(self, **targets):
        return None

    def peek(self, name):
        return None

    def wait(self):
        self.waited += 1

    def close(self):
        self.closed += 1


class Broken(Open):
    """A hook that raises on one process of several, and whose end fails."""

    def __init__(self, monkeypatch):
        self._monkeypatch = monkeypatch

    def __call__(self, trainer, state, step):
        # As if another process had not come to its own clean-up.
        self._monkeypatch.setattr(jax, "process_count", lambda: 2)
        raise LookupError("its own words")

    def close(self):
        super().close()
        raise OSError("no room for the last lines")


class Rows:
    """The same batch for ever."""

    def __iter__(self):
        return self

    def __next__(self):
        return {"x": np.ones((4, 3), np.float32)}

    def get_state(self):
        return {}

    def set_state(self, state):
        pass


def loss(model, batch, *, key):
    """Sum of squares, and the number of rows."""
    del key
    return jnp.sum(model(batch["x"]) ** 2), jnp.float32(batch["x"].shape[0])


def test_a_failed_run_keeps_its_error_and_waits_for_no_other_process(monkeypatch):
    hook, sink, store = Broken(monkeypatch), Open(), Open()
    trainer, model = Trainer(optax.sgd(0.1), loss), nnx.Linear(3, 2, rngs=nnx.Rngs(0))
    with pytest.raises(LookupError, match="its own words") as caught:
        trainer.fit(model, Rows(), steps=3, hooks=[hook], sinks=[sink], store=store)
    assert (hook.closed, sink.closed, store.waited) == (1, 1, 0)
    assert caught.value.__notes__ == [
        "While the run was closed after it: OSError('no room for the last lines')"
    ]
