# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Clients that go away, over a socket and in process."""

import asyncio

from dovetail_serve import Batching

INFER = "/v2/models/mlp/infer"


def ask_and_go_away(served, bodies):
    """Sends a request, waits until it is queued, and closes the connection."""
    with served.connect() as client:
        body = bodies.json(bodies.rows(1))
        head = f"POST {INFER} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        served.until_queued(1)


def test_a_client_that_goes_away_leaves_the_queue(exported, serving, bodies):
    batching = Batching(max_delay_ms=60_000.0)
    with serving(exported[0], batching=batching) as served:
        ask_and_go_away(served, bodies)
        served.until(lambda: served.server.statistics("mlp").failures.get("cancelled") == 1)
        assert served.server.statistics("mlp").queued == 0
        served.until(lambda: served.application._stages.responses.get(499) == 1)


def test_clients_are_watched_again_after_a_time_without_requests(exported, serving, bodies):
    full = bodies.json(bodies.rows(8))  # a full batch does not wait
    with serving(exported[0], batching=Batching(max_delay_ms=60_000.0)) as served:
        for count in (1, 2):
            assert served.ask("POST", INFER, full).status == 200
            served.until(lambda: not served.application._inference._watches._looks)
            ask_and_go_away(served, bodies)
            failures = {"cancelled": count}
            served.until(lambda f=failures: served.server.statistics("mlp").failures == f)


def test_a_client_that_goes_away_in_process_leaves_the_queue(exported, serving, bodies):
    """Another ASGI server tells of it by `http.disconnect`; the application's task ends quietly."""
    body = bodies.json(bodies.rows(1))
    scope = {"type": "http", "method": "POST", "path": INFER, "headers": []}

    with serving(exported[0], batching=Batching(max_delay_ms=60_000.0)) as served:

        async def ask():
            gone, sent = asyncio.Event(), []
            messages = [{"type": "http.request", "body": body}]

            async def receive():
                if messages:
                    return messages.pop()
                await gone.wait()
                return {"type": "http.disconnect"}

            async def send(message):
                sent.append(message)

            task = asyncio.ensure_future(served.application(scope, receive, send))
            while served.server.statistics("mlp").queued != 1:
                await asyncio.sleep(0)
            gone.set()
            await task
            return sent, task.cancelling()

        assert served.run(ask()) == ([], 0)
        assert served.server.statistics("mlp").failures == {"cancelled": 1}


def test_cancelling_the_task_is_not_taken_for_a_client_that_went_away(exported, serving, bodies):
    scope = {"type": "http", "method": "POST", "path": INFER, "headers": []}
    messages = [{"type": "http.request", "body": bodies.json(bodies.rows(1))}]

    async def receive():
        return messages.pop() if messages else await asyncio.Event().wait()

    async def send(message):
        raise AssertionError(message)

    with serving(exported[0], batching=Batching(max_delay_ms=60_000.0)) as served:

        async def main():
            task = asyncio.ensure_future(served.application(scope, receive, send))
            while served.server.statistics("mlp").queued != 1:
                await asyncio.sleep(0)
            task.cancel()
            (result,) = await asyncio.gather(task, return_exceptions=True)
            return type(result)

        assert served.run(main()) is asyncio.CancelledError
        assert served.server.statistics("mlp").queued == 0
