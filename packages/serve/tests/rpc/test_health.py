# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Health checks. Bytes of messages are written out, so that both sides cannot be wrong alike."""

import asyncio
import contextlib

import grpc
import pytest

from dovetail_serve.rpc import health, run
from dovetail_serve.rpc.wire import HEALTH_MESSAGES

CHECK, WATCH = "/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"
# Field 1 as an integer.
SERVING, NOT_SERVING, UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"
MLP, OTHER = b"\x0a\x03mlp", b"\x0a\x05other"
TIMEOUT_S = 120


def check(served, data, metadata=None):
    return served.client.channel.unary_unary(CHECK)(data, timeout=TIMEOUT_S, metadata=metadata)


def refused(served, data, metadata=None):
    with pytest.raises(grpc.RpcError) as error:
        check(served, data, metadata)
    return error.value


def test_messages_have_the_names_of_the_service():
    names = [message.DESCRIPTOR.full_name for message in HEALTH_MESSAGES.values()]
    prefix = "grpc.health.v1.HealthCheck"
    assert names == [f"{prefix}Request", f"{prefix}Response"]


@pytest.mark.thorough
def test_the_server_and_its_models_are_serving(mlp):
    assert check(mlp, b"") == check(mlp, MLP) == SERVING


def test_an_unknown_service_is_not_found(mlp):
    error = refused(mlp, OTHER)
    assert error.code() == grpc.StatusCode.NOT_FOUND
    assert "'other'" in error.details()


def test_bytes_that_are_no_request_are_refused(mlp):
    error = refused(mlp, b"\x0a\x09x")
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "the request of Check" in error.details()
    with pytest.raises(grpc.RpcError) as watch:
        list(mlp.client.channel.unary_stream(WATCH)(b"\x0a\x09x", timeout=TIMEOUT_S))
    assert watch.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def test_a_model_that_is_unloaded_is_not_serving(mlp_root, serving):
    with serving(mlp_root) as served:
        served.run(served.server.unload("mlp"))
        assert check(served, MLP) == NOT_SERVING
        assert check(served, b"") == SERVING


def test_models_need_the_token_and_the_server_does_not(mlp_root, serving):
    with serving(mlp_root, rpc={"token": "secret"}) as served:
        assert check(served, b"") == SERVING
        assert refused(served, MLP).code() == grpc.StatusCode.UNAUTHENTICATED
        assert check(served, MLP, [("authorization", "Bearer secret")]) == SERVING


@pytest.mark.thorough
def test_a_watch_tells_of_each_change_until_the_server_stops(mlp_root, serving, monkeypatch):
    monkeypatch.setattr(health, "LOOK_S", 0.01)
    with serving(mlp_root) as served:
        watch = served.client.channel.unary_stream(WATCH)
        model, whole, other = (watch(d, timeout=TIMEOUT_S) for d in (MLP, b"", OTHER))
        assert [next(model), next(whole), next(other)] == [SERVING, SERVING, UNKNOWN]
        served.run(served.server.unload("mlp"))
        assert next(model) == NOT_SERVING
        served.run(served.server.load("mlp"))
        assert next(model) == SERVING
        # The grace is long: an open watch must not hold up the stop.
        served.run(asyncio.wait_for(served.handle.stop(90.0), 60.0))
        assert list(model) == [NOT_SERVING]
        # The server was not ready during the load, which a watch may have seen.
        assert list(whole)[-1] == NOT_SERVING
        assert list(other) == []
        assert model.code() == grpc.StatusCode.OK


def test_watches_have_a_limit_and_leave_room_for_calls(mlp_root, serving, monkeypatch):
    monkeypatch.setattr(health, "MAX_WATCHES", 3)
    with monkeypatch.context() as patch, contextlib.ExitStack() as stack:
        # Two calls and three watches, as `start_grpc` reads them.
        patch.setattr(run, "MAX_CALLS", 2)
        patch.setattr(run, "MAX_WATCHES", 3)
        served = stack.enter_context(serving(mlp_root))
        watch = served.client.channel.unary_stream(WATCH)
        watches = [watch(b"", timeout=TIMEOUT_S) for _ in range(3)]
        assert [next(w) for w in watches] == [SERVING] * 3
        with pytest.raises(grpc.RpcError) as error:
            list(watch(b"", timeout=TIMEOUT_S))
        assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "at most 3 watches, got one more; call Check" in error.value.details()
        assert check(served, b"") == SERVING
        for w in watches:
            w.cancel()
        served.run(until(lambda: not served.handle._health._watches))
        assert next(watch(b"", timeout=TIMEOUT_S)) == SERVING


async def until(condition):
    while not condition():
        await asyncio.sleep(0)  # lets the loop take the next event


def test_a_watch_that_is_closed_while_it_writes_has_its_last_message(mlp_root, serving):
    with serving(mlp_root) as served:

        async def watched():
            checks = health.Health(served.server, lambda context: None)
            written = []

            class Context:
                async def write(self, message):
                    written.append(message)
                    checks.close()

            await checks._watch(MLP, Context())
            return written

        assert served.run(watched()) == [SERVING, NOT_SERVING]
