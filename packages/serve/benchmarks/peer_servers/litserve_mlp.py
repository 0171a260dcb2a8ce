# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The multilayer perceptron behind LitServe, with its batching."""

import sys

import litserve
import mlp
import numpy as np


class API(litserve.LitAPI):
    def setup(self, device):
        self.weights = mlp.weights()

    def decode_request(self, request):
        return np.asarray(request["x"], "float32")

    def batch(self, inputs):
        return np.concatenate(inputs)

    def predict(self, x):
        return mlp.apply(self.weights, x)

    def unbatch(self, output):
        return list(output)

    def encode_response(self, output):
        return {"y": output.tolist()}


if __name__ == "__main__":
    # Its documentation's settings for throughput: batches, and the fast queue.
    api = API(max_batch_size=64, batch_timeout=0.0005)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1, fast_queue=True)
    server.run(
        host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False, log_level="error"
    )
