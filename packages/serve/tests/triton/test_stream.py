# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Triton's synchronous stream."""

import queue

import numpy as np
import pytest

pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
import tritonclient.grpc

pytestmark = pytest.mark.triton


def test_responses_come_in_order_with_errors_between_them(served):
    answers = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(served.grpc) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for i in range(7):
            x = np.random.default_rng(i).normal(size=(2, 6)).astype("float32")
            tensor = tritonclient.grpc.InferInput("x", [2, 6], "FP32").set_data_from_numpy(x)
            client.async_stream_infer(
                "mlp" if i != 3 else "absent",
                [tensor],
                request_id=str(i),
                enable_empty_final_response=True,
            )
        client.stop_stream()
    assert answers.qsize() == 7
    for i in range(7):
        result, error = answers.get_nowait()
        if i == 3:
            assert "absent" in error.message()
            continue
        assert result.get_response().id == str(i)
        assert result.get_response().parameters["triton_final_response"].bool_param
        assert result.as_numpy("y").shape == (2, 3)
