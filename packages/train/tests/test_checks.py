# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments. The type checks of the suite answer first; some cases run in a subprocess."""

import subprocess
import sys

import numpy as np
import optax
import pytest

from dovetail_train import Trainer
from dovetail_train._checks import check_batch, check_loss

PROGRAM = """
import numpy as np, optax
from flax import nnx
from dovetail_train import Trainer
def loss(model, batch, *, key):
    return model(batch["x"]).sum(), 4.0
trainer, x = Trainer(optax.sgd(0.1), loss), np.ones((4, 8), np.float32)
state = trainer.init(nnx.Linear(8, 1, rngs=nnx.Rngs(0)))
for call in (trainer.place, lambda b: trainer.step(state, b)):
    try:
        call((x, x))
    except TypeError as error:
        print(error)
"""


@pytest.mark.parametrize("batch", [(1, 2), [1], None])
def test_a_batch_that_is_no_mapping_is_refused_with_what_to_write(batch):
    message = f"mapping of arrays .* got {type(batch).__name__}; write for example"
    with pytest.raises(TypeError, match=message):
        check_batch(batch, accumulate=1, shards=1)


def test_step_and_place_check_the_batch():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert len(lines) == 2, done.stderr
    assert all("must be a mapping of arrays" in line for line in lines)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda model, batch: 0.0, r"got loss\(model, batch\); write def loss\(model, batch, \*"),
        (lambda batch, *, key: 0.0, r"a loss must take \(model, batch, \*, key\)"),
        (3, "a loss must be a function of"),
    ],
)
def test_a_loss_of_other_arguments_is_refused_with_what_to_write(loss, message):
    with pytest.raises(TypeError, match=message):
        check_loss(loss)


def test_a_trainer_checks_its_loss():
    with pytest.raises(TypeError, match="a loss must take"):
        Trainer(optax.sgd(0.1), lambda model, batch: (np.float32(0), 1.0))
