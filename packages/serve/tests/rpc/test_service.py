# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Every method over a socket: its answer, and the status of each error."""

import random
import shutil
from concurrent.futures import ThreadPoolExecutor

import grpc
import jax
import numpy as np
import pytest

from dovetail_serve import Batching, Tensor, __version__, export
from dovetail_serve.errors import DeadlineExceeded
from dovetail_serve.rpc import service
from dovetail_serve.rpc.service import Service
from dovetail_serve.rpc.wire import MESSAGES
from dovetail_serve.testing import save_mlp

Code = grpc.StatusCode
DTYPES = ["bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32"]
DTYPES += ["bfloat16", "float8_e4m3fn", "int4", "complex64"]


def rows(seed, count=3):
    return np.random.default_rng(seed).normal(size=(count, 6)).astype("float32")


def outputs(response):
    return {
        o.name: (o.datatype, tuple(o.shape), data)
        for o, data in zip(response.outputs, response.raw_output_contents, strict=True)
    }


def test_health_and_metadata_of_the_server(mlp):
    assert mlp.client("ServerLive").live
    assert mlp.client("ServerReady").ready
    described = mlp.client("ServerMetadata")
    assert (described.name, described.version) == ("dovetail-serve", __version__)
    assert "model_repository" in described.extensions


@pytest.mark.parametrize(
    "name, version, ready",
    [
        ("mlp", "", True),
        ("mlp", "2", True),
        ("mlp", "stable", True),
        ("mlp", "3", False),
        ("x", "", False),
    ],
)
def test_readiness_of_a_model(mlp, name, version, ready):
    assert mlp.client("ModelReady", name=name, version=version).ready is ready


def test_metadata_and_config_of_a_model(mlp):
    described = mlp.client("ModelMetadata", name="mlp", version="stable")
    assert (described.name, list(described.versions)) == ("mlp", ["1", "2"])
    assert [(t.name, t.datatype, list(t.shape)) for t in described.inputs] == [
        ("x", "FP32", [-1, 6])
    ]
    config = mlp.client("ModelConfig", name="mlp").config
    assert (config.max_batch_size, list(config.output[0].dims)) == (8, [3])


@pytest.mark.parametrize("version, expected", [("", "2"), ("1", "1"), ("stable", "1"), ("2", "2")])
@pytest.mark.capability("gRPC")
def test_an_answer_is_that_of_the_server_bit_for_bit(mlp, infer_fields, version, expected):
    x = rows(11)
    response = mlp.client("ModelInfer", id="a b", model_version=version, **infer_fields("mlp", x=x))
    answer = mlp.run(mlp.server.infer("mlp", {"x": x}, version=expected))
    assert (response.model_name, response.model_version, response.id) == ("mlp", expected, "a b")
    assert outputs(response) == {"y": ("FP32", (3, 3), answer.outputs["y"].tobytes())}


@pytest.mark.thorough
def test_every_dtype_travels_raw(tmp_path, serving, infer_fields):
    generator = np.random.default_rng(2)
    example = {d: generator.integers(0, 2, (3, 5)).astype(jax.numpy.dtype(d)) for d in DTYPES}
    tensors = {d: Tensor(("batch", 5), d) for d in DTYPES}
    export(
        lambda params, **inputs: {f"{name}.out": x for name, x in inputs.items()},
        {"w": np.zeros(1, "float32")},
        inputs=tensors,
        example=example,
        batch_sizes=(1, 4),
    ).save(tmp_path / "types/1")
    with serving(tmp_path) as served:
        response = served.client("ModelInfer", **infer_fields("types", **example))
        received = outputs(response)
        described = served.client("ModelMetadata", name="types").outputs
    for dtype, x in example.items():
        assert received[f"{dtype}.out"][1:] == ((3, 5), x.tobytes())
    assert {t.name: t.datatype for t in described} == {n: v[0] for n, v in received.items()}


def test_a_request_is_decoded_only_for_a_model_that_takes_it(mlp):
    wrong = {"name": "x", "datatype": "nonsense"}
    error = mlp.client.refusal("ModelInfer", model_name="mlq", inputs=[wrong])
    assert error.code() == Code.NOT_FOUND
    error = mlp.client.refusal("ModelInfer", model_name="mlp", inputs=[wrong, wrong])
    assert error.code() == Code.INVALID_ARGUMENT
    assert "must have the inputs x, got 2 inputs; send each once" in error.details()


def test_typed_contents_give_the_same_answer(mlp, infer_fields):
    x = rows(12)
    raw = mlp.client("ModelInfer", **infer_fields("mlp", x=x))
    contents = {"fp32_contents": x.ravel().tolist()}
    tensor = {"name": "x", "datatype": "FP32", "shape": x.shape, "contents": contents}
    assert mlp.client("ModelInfer", model_name="mlp", inputs=[tensor]) == raw


def test_concurrent_clients_receive_their_own_rows(mlp, infer_fields):
    def ask(seed):
        x = rows(seed, count=1 + seed % 5)
        response = mlp.client("ModelInfer", id=str(seed), **infer_fields("mlp", x=x))
        received = np.frombuffer(response.raw_output_contents[0], "float32").reshape(-1, 3)
        return response.id == str(seed), x, received

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(40)))
    for own, x, received in answers:
        assert own
        expected = mlp.run(mlp.server.infer("mlp", {"x": x})).outputs["y"]
        # Another size may round otherwise: sums of at most 6 terms in float32.
        np.testing.assert_allclose(received, expected, rtol=1e-5, atol=1e-6)


def fields(**changes):
    x = rows(1)
    tensor = {"name": "x", "datatype": "FP32", "shape": x.shape}
    base = {"model_name": "mlp", "inputs": [tensor], "raw_input_contents": [x.tobytes()]}
    return base | changes


def changed(**changes):
    return fields(inputs=[{"name": "x", "datatype": "FP32", "shape": (3, 6)} | changes])


PARAMETER = MESSAGES["InferParameter"]
REFUSED = {
    "unknown model": (fields(model_name="mpl"), Code.NOT_FOUND, ["'mpl'"]),
    "unknown version": (fields(model_version="9"), Code.NOT_FOUND, ["version='9'"]),
    "other name": (changed(name="z"), Code.INVALID_ARGUMENT, ["x", "z"]),
    "other dtype": (changed(datatype="INT32"), Code.INVALID_ARGUMENT, ["float32", "int32"]),
    "other shape": (changed(shape=(9, 2)), Code.INVALID_ARGUMENT, ["batch, 6", "9, 2"]),
    "wrong size": (changed(shape=(4, 6)), Code.INVALID_ARGUMENT, ["96 bytes", "got 72"]),
    "no input": ({"model_name": "mlp"}, Code.INVALID_ARGUMENT, ["x", "none"]),
    "unknown output": (
        fields(outputs=[{"name": "q"}]),
        Code.INVALID_ARGUMENT,
        ["among y", "got 'q'"],
    ),
    "priority": (
        fields(parameters={"priority": PARAMETER(uint64_param=5)}),
        Code.INVALID_ARGUMENT,
        ["5"],
    ),
    "sequence": (
        fields(parameters={"sequence_id": PARAMETER(int64_param=5)}),
        Code.INVALID_ARGUMENT,
        ["sequence_id"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_requests_are_refused_with_what_came(mlp, case):
    request, code, parts = REFUSED[case]
    error = mlp.client.refusal("ModelInfer", **request)
    assert error.code() == code
    for part in parts:
        assert part in error.details()


@pytest.mark.parametrize("method", ["ModelMetadata", "ModelConfig", "ModelStatistics"])
def test_unknown_models_have_no_description(mlp, method):
    error = mlp.client.refusal(method, name="mpl")
    assert (error.code(), "'mpl'" in error.details()) == (Code.NOT_FOUND, True)


def test_a_malformed_message_is_refused(mlp):
    with pytest.raises(grpc.RpcError) as error:
        mlp.client.send("ModelInfer", b"\xff\xff")
    assert error.value.code() == Code.INVALID_ARGUMENT
    assert "request of ModelInfer" in error.value.details()


@pytest.mark.parametrize(
    "method, part",
    [
        ("SystemSharedMemoryStatus", "no shared memory; send tensors"),
        ("SystemSharedMemoryRegister", "no shared memory"),
        ("SystemSharedMemoryUnregister", "no shared memory"),
        ("CudaSharedMemoryStatus", "no shared memory"),
        ("CudaSharedMemoryRegister", "no shared memory"),
        ("CudaSharedMemoryUnregister", "no shared memory"),
        ("TraceSetting", "no trace settings"),
        ("LogSettings", "no log settings; configure the logger 'dovetail_serve'"),
    ],
)
def test_what_is_not_served_says_so(mlp, method, part):
    with pytest.raises(grpc.RpcError) as error:
        mlp.client.send(method, b"")
    assert error.value.code() == Code.UNIMPLEMENTED
    assert part in error.value.details()


@pytest.mark.thorough
def test_statistics_count_answers_and_failures(mlp_root, serving, infer_fields):
    with serving(mlp_root, versions="all") as served:
        for count in (1, 3):
            served.client("ModelInfer", model_version="1", **infer_fields("mlp", x=rows(3, count)))
        served.client.refusal("ModelInfer", **changed(shape=(9, 2)))
        # Refused before any work, so it counts nowhere.
        served.client.refusal("ModelInfer", **fields(outputs=[{"name": "q"}]))
        everything = served.client("ModelStatistics").model_stats
        (first,) = served.client("ModelStatistics", name="mlp", version="1").model_stats
    assert [(s.name, s.version) for s in everything] == [("mlp", "1"), ("mlp", "2")]
    assert [s.inference_stats.success.count for s in everything] == [2, 0]
    assert [s.inference_stats.fail.count for s in everything] == [0, 1]
    assert (first.inference_count, first.execution_count) == (4, 2)
    stats = first.inference_stats
    stages = (stats.queue, stats.compute_input, stats.compute_infer, stats.compute_output)
    # Each stage is rounded to a nanosecond.
    assert abs(sum(stage.ns for stage in stages) - stats.success.ns) <= 4


def test_a_full_queue_and_deadlines(mlp_root, serving, infer_fields, monkeypatch):
    # Nothing runs for a minute, so that requests wait.
    batching = Batching(max_delay_ms=60_000.0, queue=2)
    with serving(mlp_root, batching=batching) as served:
        waiting = [
            served.client.method("ModelInfer").future(
                MESSAGES["ModelInferRequest"](**infer_fields("mlp", x=rows(i, 1)))
            )
            for i in range(2)
        ]
        served.until_queued(2)
        decoded = []
        with monkeypatch.context() as patch:
            patch.setattr(service, "read_request", decoded.append)
            error = served.client.refusal("ModelInfer", **fields())
        assert error.code() == Code.RESOURCE_EXHAUSTED
        assert not decoded, "decoding takes longer than the refusal"
        assert int(dict(error.trailing_metadata())["retry-after"]) >= 1
        # A client that leaves takes its request out of the queue.
        waiting[0].cancel()
        served.until_queued(1)
        timeout = {"timeout": PARAMETER(int64_param=20_000)}
        error = served.client.refusal(
            "ModelInfer", parameters=timeout, **infer_fields("mlp", x=rows(4))
        )
        assert error.code() == Code.DEADLINE_EXCEEDED
        # The client's own deadline, of 120 seconds, would say so in its words.
        assert "20 ms" in error.details()
        stub = served.client.method("ModelInfer")
        with pytest.raises(grpc.RpcError) as late:
            stub(MESSAGES["ModelInferRequest"](**fields()), timeout=0.05)
        assert late.value.code() == Code.DEADLINE_EXCEEDED
        served.until_queued(1)
        statistics = served.read(lambda: served.server.statistics("mlp"))
        assert statistics.successes == 0
        assert statistics.failures["cancelled"] >= 1
        waiting[1].cancel()


class Call:
    """The side of a call that a handler sees, with a deadline."""

    def time_remaining(self):
        return 0.01


@pytest.mark.thorough
def test_the_deadline_of_a_call_is_that_of_its_request(mlp_root, serving):
    # Nothing runs for a minute, and no client cancels: only the deadline ends it.
    with serving(mlp_root, batching=Batching(max_delay_ms=60_000.0)) as served:
        service = Service(served.server, token=None, control=False, max_body=1 << 20)
        with pytest.raises(DeadlineExceeded):
            served.run(service.infer(MESSAGES["ModelInferRequest"](**fields()), Call()))


def test_control_is_refused_unless_it_is_asked_for(mlp):
    for method in ("RepositoryModelLoad", "RepositoryModelUnload"):
        error = mlp.client.refusal(method, model_name="mlp")
        assert error.code() == Code.PERMISSION_DENIED
        assert "control=True" in error.details()
    assert mlp.client("ModelReady", name="mlp").ready


@pytest.mark.thorough
def test_load_unload_and_index(tmp_path, serving):
    save_mlp(tmp_path / "a/1")
    save_mlp(tmp_path / "b/1", seed=1)
    parameter = MESSAGES["ModelRepositoryParameter"](bool_param=False)
    with serving(tmp_path, rpc={"control": True}) as served:
        client = served.client
        client("RepositoryModelUnload", model_name="a", parameters={"unload_dependents": parameter})
        assert not client("ModelReady", name="a").ready
        index = [(m.name, m.state) for m in client("RepositoryIndex").models]
        assert index == [("a", "UNAVAILABLE"), ("b", "READY")]
        assert [m.name for m in client("RepositoryIndex", ready=True).models] == ["b"]
        client("RepositoryModelLoad", model_name="a")
        assert client("ModelReady", name="a").ready
        # A damaged bundle is named, and the loaded one stays.
        shutil.copytree(tmp_path / "b/1", tmp_path / "b/2")
        weights = tmp_path / "b/2/weights.safetensors"
        weights.chmod(0o644)  # weights are read-only
        weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
        error = client.refusal("RepositoryModelLoad", model_name="b")
        assert error.code() == Code.FAILED_PRECONDITION
        assert "weights.safetensors" in error.details()
        assert client("ModelReady", name="b", version="1").ready
        stats = client("ModelStatistics", name="b").model_stats
        assert [(s.name, s.version) for s in stats] == [("b", "1"), ("b", "2")]  # as over HTTP
        error = client.refusal("RepositoryIndex", repository_name="r")
        assert (error.code(), "'r'" in error.details()) == (Code.INVALID_ARGUMENT, True)
        error = client.refusal("RepositoryModelLoad", model_name="c")
        assert error.code() == Code.NOT_FOUND
        error = client.refusal(
            "RepositoryModelLoad", model_name="a", parameters={"config": parameter}
        )
        assert (error.code(), "'config'" in error.details()) == (Code.INVALID_ARGUMENT, True)
        error = client.refusal("RepositoryModelLoad", model_name="a", repository_name="r")
        assert (error.code(), "'r'" in error.details()) == (Code.INVALID_ARGUMENT, True)


@pytest.mark.thorough
def test_a_token_is_asked_for_except_by_health_checks(mlp_root, serving, infer_fields):
    with serving(mlp_root, rpc={"token": "s3cret"}) as served:
        client = served.client
        assert client("ServerLive").live
        assert client("ServerReady").ready
        for metadata in (
            None,
            [("authorization", "Bearer other")],
            [("authorization", "Basic s3cret")],
            [("authorization", "s3cret")],
            [("authorization", "Bearer s3cret2")],
            [("authorization", "Bearer s3cre")],
            [("authorization", "Bearer ")],
        ):
            error = client.refusal("ModelReady", name="mlp", metadata=metadata)
            assert error.code() == Code.UNAUTHENTICATED
            assert "Bearer TOKEN" in error.details()
        token = [("authorization", "Bearer s3cret")]
        assert client("ModelReady", name="mlp", metadata=token).ready
        x = infer_fields("mlp", x=rows(1))
        assert client("ModelInfer", metadata=token, **x).outputs[0].name == "y"
        with pytest.raises(grpc.RpcError) as error:
            next(client.stream(iter([])))
        assert error.value.code() == Code.UNAUTHENTICATED


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_requests(mlp, infer_fields, compression):
    request = MESSAGES["ModelInferRequest"](**infer_fields("mlp", x=rows(8)))
    stub = mlp.client.method("ModelInfer")
    assert stub(request, compression=compression, timeout=30) == stub(request, timeout=30)


@pytest.mark.thorough
def test_mutated_requests_are_answered_or_refused(mlp, infer_fields):
    generator = random.Random(13)
    contents = MESSAGES["ModelInferRequest"](
        model_version="1",
        id="1",
        outputs=[{"name": "y"}],
        parameters={"timeout": PARAMETER(int64_param=10**7)},
        **infer_fields("mlp", x=rows(1, 2)),
    ).SerializeToString()
    codes = set()
    for _ in range(500):
        data = bytearray(contents)
        for _ in range(generator.randint(1, 4)):
            at = generator.randrange(len(data))
            data[at : at + generator.randint(0, 3)] = generator.randbytes(generator.randint(0, 3))
        try:
            response = MESSAGES["ModelInferResponse"].FromString(
                mlp.client.send("ModelInfer", bytes(data))
            )
            assert response.model_name == "mlp"
            codes.add(Code.OK)
        except grpc.RpcError as error:
            codes.add(error.code())
    # Neither INTERNAL nor UNKNOWN nor a broken connection.
    assert codes <= {Code.OK, Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.DEADLINE_EXCEEDED}
    assert {Code.OK, Code.INVALID_ARGUMENT, Code.NOT_FOUND} <= codes
    assert mlp.client("ModelInfer", **infer_fields("mlp", x=rows(1))).model_version == "2"
