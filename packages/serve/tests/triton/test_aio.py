# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Triton's clients for asyncio."""

import asyncio

import numpy as np
import pytest

pytest.importorskip("tritonclient.grpc.aio", reason="tritonclient is not installed")
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.triton


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_health_inference_and_refusal(served, protocol):
    module = {"grpc": tritonclient.grpc, "http": tritonclient.http}[protocol]
    inputs = [
        np.random.default_rng(i).normal(size=(1 + i % 3, 6)).astype("float32") for i in range(8)
    ]

    def tensors(x):
        return [module.InferInput("x", list(x.shape), "FP32").set_data_from_numpy(x)]

    async def main():
        async with module.aio.InferenceServerClient(getattr(served, protocol)) as client:
            assert await client.is_server_ready()
            assert await client.is_model_ready("mlp")
            calls = (client.infer("mlp", tensors(x), request_id=str(len(x))) for x in inputs)
            answers = await asyncio.gather(*calls)
            with pytest.raises(InferenceServerException, match="absent"):
                await client.infer("absent", tensors(inputs[0]))
            return [answer.as_numpy("y") for answer in answers]

    for x, y in zip(inputs, asyncio.run(main()), strict=True):
        # Another batch may round otherwise: float32 sums of at most 6 terms.
        np.testing.assert_allclose(y, served.infer("mlp", {"x": x})["y"], rtol=1e-5, atol=1e-6)


def test_stream(served):
    inputs = [
        np.random.default_rng(i).normal(size=(1 + i % 3, 6)).astype("float32") for i in range(9)
    ]

    async def requests():
        for i, x in enumerate(inputs):
            tensor = tritonclient.grpc.InferInput("x", list(x.shape), "FP32").set_data_from_numpy(x)
            name = "absent" if i == 4 else "mlp"
            yield {"model_name": name, "inputs": [tensor], "request_id": str(i)}

    async def main():
        async with tritonclient.grpc.aio.InferenceServerClient(served.grpc) as client:
            return [item async for item in client.stream_infer(requests())]

    for i, (result, error) in enumerate(asyncio.run(main())):
        if i == 4:
            assert "absent" in error.message()
            continue
        assert error is None
        assert result.get_response().id == str(i)
        expected = served.infer("mlp", {"x": inputs[i]})["y"]
        # Another batch may round otherwise: float32 sums of at most 6 terms.
        np.testing.assert_allclose(result.as_numpy("y"), expected, rtol=1e-5, atol=1e-6)
