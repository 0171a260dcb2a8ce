# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A stream answers each request in order, holds a bounded number, and drops them when it ends."""

import asyncio
import threading

import grpc
import numpy as np
import pytest

from dovetail_serve import Batching
from dovetail_serve.rpc import stream
from dovetail_serve.rpc.wire import MESSAGES
from dovetail_serve.serving.bodies import Bodies

REQUEST, RESPONSE = MESSAGES["ModelInferRequest"], MESSAGES["ModelInferResponse"]


def request(infer_fields, i, **fields):
    x = np.random.default_rng(i).normal(size=(1 + i % 3, 6)).astype("float32")
    return REQUEST(id=str(i), **{**infer_fields("mlp", x=x), **fields})


@pytest.mark.thorough
def test_each_request_has_one_response_in_order(mlp, infer_fields):
    requests = [request(infer_fields, i) for i in range(stream.IN_FLIGHT + 20)]
    requests[3].raw_input_contents[0] += b"1"
    requests[5].model_name = "mpl"
    responses = list(mlp.client.stream(iter(requests)))
    assert [r.infer_response.id for r in responses] == [r.id for r in requests]
    assert [i for i, r in enumerate(responses) if r.error_message] == [3, 5]
    assert "24 bytes, got 25" in responses[3].error_message
    assert "'mpl'" in responses[5].error_message
    unary = mlp.client.method("ModelInfer")(requests[7], timeout=30)
    assert responses[7].infer_response.parameters["triton_final_response"].bool_param
    np.testing.assert_allclose(
        np.frombuffer(responses[7].infer_response.raw_output_contents[0], "float32"),
        np.frombuffer(unary.raw_output_contents[0], "float32"),
        # Another size may round otherwise: sums of at most 6 terms in float32.
        rtol=1e-5,
        atol=1e-6,
    )


def test_an_empty_stream_ends(mlp):
    assert list(mlp.client.stream(iter([]))) == []


def test_a_malformed_message_is_an_error_of_its_own(mlp, infer_fields):
    call = mlp.client.channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
    data = [b"\xff\xff", request(infer_fields, 1).SerializeToString()]
    first, second = map(
        MESSAGES["ModelStreamInferResponse"].FromString, call(iter(data), timeout=30)
    )
    assert "got bytes that are not" in first.error_message
    assert (second.error_message, second.infer_response.id) == ("", "1")


def test_a_client_that_leaves_drops_its_requests(mlp_root, serving, infer_fields):
    # Nothing runs for a minute, so that requests wait.
    with serving(mlp_root, batching=Batching(max_delay_ms=60_000.0)) as served:
        sent = threading.Event()

        def requests():
            for i in range(3):
                yield request(infer_fields, 3 * i)
            sent.wait(30)

        call = served.client.stream(requests())
        served.until_queued(3)
        call.cancel()
        sent.set()
        served.until_queued(0)
        failures = served.read(lambda: served.server.statistics("mlp").failures)
        assert failures == {"cancelled": 3}


class Call:
    """The side of a call that a handler sees: messages to read, and room for those written."""

    def __init__(self, messages, room):
        self._messages = iter(messages)
        self._room = asyncio.Semaphore(room)
        self.read_count, self.written = 0, []

    async def read(self):
        data = next(self._messages, grpc.aio.EOF)
        self.read_count += data is not grpc.aio.EOF
        return data

    async def write(self, data):
        await self._room.acquire()
        self.written.append(MESSAGES["ModelStreamInferResponse"].FromString(data))

    def grow(self):
        self._room.release()


async def _answer(message, context):
    return RESPONSE(id=message.id)


async def _settle():
    for _ in range(50):
        await asyncio.sleep(0)


def test_a_slow_reader_bounds_what_is_read():
    total = stream.IN_FLIGHT + 30
    messages = [REQUEST(id=str(i)).SerializeToString() for i in range(total)]

    async def main():
        call = Call(messages, room=5)
        task = asyncio.create_task(stream.answer_stream(_answer, call, Bodies(1000)))
        counts = []
        await _settle()
        counts.append((call.read_count, len(call.written)))
        call.grow()
        await _settle()
        counts.append((call.read_count, len(call.written)))
        for _ in range(total):
            call.grow()
        await task
        return counts, [r.infer_response.id for r in call.written]

    counts, ids = asyncio.run(main())
    bound = stream.IN_FLIGHT
    assert counts == [(bound + 5, 5), (bound + 6, 6)]
    assert ids == [str(i) for i in range(total)]


def test_a_cancelled_stream_cancels_what_runs():
    async def main():
        ended = []

        async def wait(message, context):
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(message.id)

        # More than run at once, so that the reader waits too.
        total = stream.IN_FLIGHT + 4
        call = Call([REQUEST(id=str(i)).SerializeToString() for i in range(total)], room=9)
        task = asyncio.create_task(stream.answer_stream(wait, call, Bodies(1000)))
        await _settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await _settle()
        return ended, len(asyncio.all_tasks())

    assert asyncio.run(main()) == ([str(i) for i in range(stream.IN_FLIGHT)], 1)


def test_a_failed_read_ends_the_stream():
    class Broken(Call):
        async def read(self):
            raise RuntimeError("reset")

    with pytest.raises(RuntimeError, match="reset"):
        asyncio.run(stream.answer_stream(_answer, Broken([], room=1), Bodies(1000)))
