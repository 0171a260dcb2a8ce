# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The multilayer perceptron behind BentoML, with its adaptive batching.

bentoml serve bentoml_mlp:MLP --port PORT
"""

import bentoml
import mlp
import numpy as np


@bentoml.service(workers=1, metrics={"enabled": True}, logging={"access": {"enabled": False}})
class MLP:
    def __init__(self) -> None:
        self.weights = mlp.weights()

    @bentoml.api(batchable=True, max_batch_size=64, max_latency_ms=1000)
    def predict(self, x: np.ndarray) -> np.ndarray:
        return mlp.apply(self.weights, x.astype("float32"))
