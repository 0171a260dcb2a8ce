# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
import itertools

import numpy as np
import optax
import pytest
from flax import nnx

from dovetail_train import Trainer


class _Hook:
    """A hook that returns `result`; in parts, if `yields`."""

    every = 2

    def __init__(self, result, *, yields):
        self.result, self.calls = result, []
        if yields:
            self.run_in_parts = self._run_in_parts

    def __call__(self, trainer, state, step):
        self.calls.append(step)
        return self.result

    def _run_in_parts(self, trainer, state, step):
        yield
        return self(trainer, state, step)


def _loss(model, batch, *, key):
    return (model(batch["x"]) ** 2).sum(), np.float32(4)


def _fit(*hooks, **options):
    trainer = Trainer(optax.adam(1e-2), _loss)
    rows = itertools.repeat({"x": np.ones((4, 3), "f4")})
    return trainer.fit(nnx.Linear(3, 2, rngs=nnx.Rngs(0)), rows, steps=6, hooks=hooks, **options)


@pytest.mark.parametrize("yields", [False, True])
def test_a_hook_without_return_has_no_scalars_and_ends_nothing(yields):
    hook, last = _Hook(None, yields=yields), _Hook({"a": 1.0}, yields=False)
    result = _fit(hook, last, stop=lambda step: False)
    assert (result.step, result.interrupted) == (6, False)
    assert hook.calls == last.calls == [2, 4, 6]


def test_a_stop_request_interrupts_a_hook_without_return():
    hook, requests = _Hook(None, yields=True), []

    def stop(step):
        requests.append(step)
        return len(requests) == 3  # the first within the hook of step 2

    result = _fit(hook, stop=stop)
    assert (result.step, result.interrupted, requests, hook.calls) == (2, True, [1, 2, 2], [])


@pytest.mark.parametrize("yields", [False, True])
@pytest.mark.parametrize("result", [[1.0], 0.5, True, {1: 2.0}])
def test_a_result_that_has_no_names_is_refused_with_the_hook(result, yields):
    message = r"scalars by name, or None, got .* from _Hook; write for example return \{'accuracy'"
    with pytest.raises(TypeError, match=message):
        _fit(_Hook(result, yields=yields))
