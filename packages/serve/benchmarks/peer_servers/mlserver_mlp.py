# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The multilayer perceptron behind MLServer, with its adaptive batching.

mlserver start FOLDER, with settings.json and model-settings.json
"""

import mlp
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class MLP(MLModel):
    async def load(self) -> bool:
        self.weights = mlp.weights()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        x = NumpyCodec.decode_input(payload.inputs[0])
        y = mlp.apply(self.weights, x.astype("float32"))
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("y", y)])
