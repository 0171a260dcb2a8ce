# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""A stream of inference requests, each answered in order by one response.

Requests of a stream run at the same time, so that the server can join them into batches. Their
number is bounded: the next request is read once a response has left. Requests of a client
that does not read its responses stay unread, and gRPC's flow control stops it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from dovetail_serve.rpc.status import status
from dovetail_serve.rpc.wire import MESSAGES
from dovetail_serve.serving.bodies import Bodies

# Requests of one stream between their arrival and the departure of their response.
IN_FLIGHT = 64

Infer = Callable[[Any, Any], Awaitable[Any]]


async def answer_stream(infer: Infer, context: Any, bodies: Bodies) -> None:
    """Answers the requests of a `ModelStreamInfer` call until its client has sent all.

    Args:
        infer: Returns the response to a request.
        context: The call of `grpc.aio`.
        bodies: Bounds the requests that are held.
    """
    slots = asyncio.Semaphore(IN_FLIGHT)
    answers: asyncio.Queue[asyncio.Task[bytes] | None] = asyncio.Queue()
    running: deque[asyncio.Task[bytes]] = deque()

    async def read() -> None:
        try:
            while True:
                await slots.acquire()
                data = await context.read()
                if data is grpc.aio.EOF:  # type: ignore[attr-defined]  # grpc has no stubs
                    return
                task = asyncio.create_task(_answer(infer, data, context, bodies))
                running.append(task)
                answers.put_nowait(task)
        finally:
            answers.put_nowait(None)

    reader = asyncio.create_task(read())
    try:
        while (task := await answers.get()) is not None:
            await context.write(await task)
            running.popleft()
            slots.release()
        await reader
    finally:
        # The call was cancelled, or a write failed: drop the requests that wait.
        reader.cancel()
        for task in running:
            task.cancel()


async def _answer(infer: Infer, data: bytes, context: Any, bodies: Bodies) -> bytes:
    """Returns the response to one request, serialized; errors are part of it."""
    request, response = MESSAGES["ModelInferRequest"](), MESSAGES["ModelStreamInferResponse"]()
    try:
        request.ParseFromString(data)
        with bodies.holding(len(data)):
            response.infer_response.CopyFrom(await infer(request, context))
        # As Triton marks the last response to a request.
        response.infer_response.parameters["triton_final_response"].bool_param = True
    except Exception as error:
        response.error_message = status(error, "ModelStreamInfer").message
        response.infer_response.id = request.id
    return response.SerializeToString()
