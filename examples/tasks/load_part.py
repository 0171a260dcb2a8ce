# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0

import numpy as np
from flax import nnx

from dovetail_checkpoint import Store, explain, keep_init, load


class Classifier(nnx.Module):
    def __init__(self, classes, *, seed):
        self.body = nnx.Linear(8, 16, rngs=nnx.Rngs(seed))
        self.head = nnx.Linear(16, classes, rngs=nnx.Rngs(seed))


old, new = Classifier(1000, seed=0), Classifier(3, seed=1)
with Store("run") as store:
    store.save(100, model=nnx.state(old))

rules = [keep_init("head.**")]  # all else is loaded
print(explain("run/100", nnx.state(new), rules=rules))
nnx.update(new, load("run/100", nnx.state(new), rules=rules))
print("the body is loaded:", np.array_equal(new.body.kernel, old.body.kernel))
# prints: the body is loaded: True
