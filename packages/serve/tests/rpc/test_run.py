# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The server's life: address, limits, TLS, shutdown, both event loops."""

import asyncio
import subprocess
import sys

import grpc
import grpc.aio
import numpy as np
import pytest
import uvloop

from dovetail_serve import Batching, Server
from dovetail_serve.rpc.run import start_grpc
from dovetail_serve.rpc.wire import MESSAGES, SERVICE
from dovetail_serve.serving.bodies import LARGEST_BODIES

LIVE = f"/{SERVICE}/ServerLive"


def test_a_message_above_the_limit_is_refused_compressed_or_not(mlp_root, serving, infer_fields):
    x = np.zeros((200, 6), "float32")  # 4,800 bytes, and far less compressed
    with serving(mlp_root, rpc={"max_body": 4000}) as served:
        stub = served.client.method("ModelInfer")
        request = MESSAGES["ModelInferRequest"](**infer_fields("mlp", x=x))
        for compression in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
            with pytest.raises(grpc.RpcError) as error:
                stub(request, compression=compression, timeout=30)
            assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "larger than max" in error.value.details()
        small = MESSAGES["ModelInferRequest"](**infer_fields("mlp", x=x[:100]))
        assert list(stub(small, timeout=30).outputs[0].shape) == [100, 3]


@pytest.mark.thorough
def test_messages_of_all_calls_have_a_bound(mlp_root, serving, infer_fields):
    x = np.zeros((160, 6), "float32")
    fields = infer_fields("mlp", x=x)
    size = MESSAGES["ModelInferRequest"](**fields).ByteSize()
    options = Batching(max_batch=4096, max_delay_ms=1e6)
    with serving(mlp_root, rpc={"max_body": size + 3}, batching=options) as served:
        stub = served.client.method("ModelInfer")
        request = MESSAGES["ModelInferRequest"](**fields)
        calls = [stub.future(request) for _ in range(LARGEST_BODIES)]
        served.until_queued(LARGEST_BODIES)
        error = served.client.refusal("ModelInfer", **fields)
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert ("retry-after", "1") in error.trailing_metadata()
        bound = f"at most {16 * (size + 3)} bytes, got {16 * size} and {size}"
        assert f"{bound} more; try again later" in error.details()
        (response,) = served.client.stream(iter([MESSAGES["ModelInferRequest"](id="7", **fields)]))
        # The id has three bytes.
        assert f"got {16 * size} and {size + 3} more; try again" in response.error_message
        assert response.infer_response.id == "7"
        calls[3].cancel()
        served.until_queued(LARGEST_BODIES - 1)
        calls[3] = stub.future(request)
        served.until_queued(LARGEST_BODIES)
        for call in calls:
            call.cancel()


@pytest.mark.thorough
def test_a_connection_may_have_as_many_calls_as_the_queue_holds(mlp_root, serving, infer_fields):
    batching = Batching(max_batch=4096, max_delay_ms=1e6, queue=400)
    with serving(mlp_root, batching=batching) as served:
        stub = served.client.method("ModelInfer")
        request = MESSAGES["ModelInferRequest"](**infer_fields("mlp", x=np.zeros((1, 6), "f4")))
        calls = [stub.future(request) for _ in range(400)]
        served.until_queued(400)
        error = served.client.refusal("ModelInfer", **infer_fields("mlp", x=np.zeros((1, 6), "f4")))
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "grpc-retry-pushback-ms" in dict(error.trailing_metadata())
        for call in calls:
            call.cancel()


@pytest.mark.thorough
def test_answers_may_be_larger_than_four_mebibytes(tmp_path, serving, infer_fields):
    from dovetail_serve import Tensor, export

    export(
        lambda params, *, x: {"y": x[:, None] + params["w"]},
        {"w": np.arange(1 << 20, dtype="float32")},
        inputs={"x": Tensor(("batch",), "float32")},
        example={"x": np.float32([1.0, 2.0])},
        batch_sizes=(2,),
    ).save(tmp_path / "wide/1")
    with serving(tmp_path) as served:
        options = [("grpc.max_receive_message_length", -1)]
        with grpc.insecure_channel(f"127.0.0.1:{served.port}", options) as channel:
            stub = channel.unary_unary(f"/{SERVICE}/ModelInfer")
            request = MESSAGES["ModelInferRequest"](
                **infer_fields("wide", x=np.float32([0.5, 3.0]))
            )
            data = stub(request.SerializeToString(), timeout=30)
    response = MESSAGES["ModelInferResponse"].FromString(data)
    y = np.frombuffer(response.raw_output_contents[0], "float32").reshape(2, -1)
    assert (y[0, 7], y[1, -1]) == (7.5, (1 << 20) + 2)


def test_a_port_is_held_by_one_server(mlp, mlp_root):
    async def second():
        async with Server(mlp_root) as server:
            await start_grpc(server, port=mlp.port)

    with pytest.raises(OSError, match=f"127.0.0.1:{mlp.port}, got: .*; choose another port"):
        asyncio.run(second())


def test_a_port_that_no_socket_has_is_refused(mlp_root):
    """gRPC itself would listen on 70000 - 65536."""
    with pytest.raises(ValueError, match="from 0 to 65535, got port=70000; write port=0"):
        asyncio.run(start_grpc(Server(mlp_root), port=70000))


@pytest.mark.thorough
@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
def test_stop_answers_open_calls_and_closes_the_port(mlp_root, infer_fields, runner):
    x = np.random.default_rng(0).normal(size=(8, 6)).astype("float32")
    request = MESSAGES["ModelInferRequest"](**infer_fields("mlp", x=x)).SerializeToString()

    async def main():
        async with Server(mlp_root) as server:
            handle = await start_grpc(server, port=0)
            async with grpc.aio.insecure_channel(f"127.0.0.1:{handle.port}") as channel:
                assert await channel.unary_unary(LIVE)(b"") == b"\x08\x01"
                stub = channel.unary_unary(f"/{SERVICE}/ModelInfer")
                answer = await stub(request)
                await handle.stop(5.0)
                with pytest.raises(grpc.aio.AioRpcError) as error:
                    await stub(request, timeout=60)
                assert error.value.code() == grpc.StatusCode.UNAVAILABLE
            y = (await server.infer("mlp", {"x": x})).outputs["y"]
            assert (
                MESSAGES["ModelInferResponse"].FromString(answer).raw_output_contents[0]
                == y.tobytes()
            )

    runner(main())


def certificate(folder):
    """Writes a self-signed certificate for localhost and its key. Returns their paths."""
    chain, key = folder / "chain.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-keyout", key, "-out", chain, "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost"),
        ],
        check=True,
        capture_output=True,
    )
    return chain, key


def test_tls(tmp_path, mlp_root, serving):
    tls = certificate(tmp_path)
    with serving(mlp_root, rpc={"tls": tls, "host": "127.0.0.1"}) as served:
        trusted = grpc.ssl_channel_credentials(tls[0].read_bytes())
        options = [("grpc.ssl_target_name_override", "localhost")]
        address = f"127.0.0.1:{served.port}"
        with grpc.secure_channel(address, trusted, options) as channel:
            assert channel.unary_unary(LIVE)(b"", timeout=30) == b"\x08\x01"
        with pytest.raises(grpc.RpcError) as error:
            served.client.channel.unary_unary(LIVE)(b"", timeout=30)
        assert error.value.code() == grpc.StatusCode.UNAVAILABLE


@pytest.mark.thorough
def test_the_package_imports_without_grpc():
    program = "import sys, dovetail_serve; print({'grpc', 'google.protobuf'} & set(sys.modules))"
    output = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout
    assert output.strip() == "set()"
