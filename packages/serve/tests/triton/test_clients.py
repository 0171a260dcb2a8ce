# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Triton's synchronous clients for HTTP and gRPC, unmodified, against the same server."""

import queue

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

pytestmark = pytest.mark.triton
NARROW = ("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32")
WIDE = ("int64", "uint64", "float64")


class Http:
    """Triton's client for HTTP, with inputs and outputs as binary data or as JSON."""

    module = tritonclient.http

    def __init__(self, served, binary):
        self.binary = binary
        self.client = self.module.InferenceServerClient(served.http)

    def tensor(self, name, array):
        tensor = self.module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        return tensor.set_data_from_numpy(array, binary_data=self.binary)

    def output(self, name, **options):
        return self.module.InferRequestedOutput(name, binary_data=self.binary, **options)

    def options(self, compression):
        both = ("request_compression_algorithm", "response_compression_algorithm")
        return dict.fromkeys(both, compression)


class Grpc:
    """Triton's client for gRPC."""

    module = tritonclient.grpc
    binary = True

    def __init__(self, served):
        self.client = self.module.InferenceServerClient(served.grpc)

    def tensor(self, name, array):
        tensor = self.module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        return tensor.set_data_from_numpy(array)

    def output(self, name, **options):
        return self.module.InferRequestedOutput(name, **options)

    def options(self, compression):
        return {"compression_algorithm": compression}


@pytest.fixture(params=["grpc", "http-binary", "http-json"])
def triton(request, served):
    if request.param == "grpc":
        client = Grpc(served)
    else:
        client = Http(served, binary=request.param == "http-binary")
    yield client
    client.client.close()


@pytest.fixture(params=["grpc", "http"])
def client(request, served):
    """One client for each protocol, for what has no tensors."""
    made = Grpc(served) if request.param == "grpc" else Http(served, binary=True)
    yield made.client
    made.client.close()


def as_json(client):
    """Options that make the answers of both clients dictionaries."""
    return {"as_json": True} if isinstance(client, tritonclient.grpc.InferenceServerClient) else {}


def rows(seed, count=3):
    return np.random.default_rng(seed).normal(size=(count, 6)).astype("float32")


def values(dtype, seed=5):
    generator = np.random.default_rng(seed)
    if dtype == "bool":
        return generator.integers(0, 2, (3, 5)).astype(bool)
    if np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        return generator.integers(info.min, info.max, (3, 5), dtype, endpoint=True)
    return generator.normal(size=(3, 5)).astype(dtype)


def test_health(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("mlp")
    assert client.is_model_ready("mlp", "2")
    assert not client.is_model_ready("absent")


def test_metadata(client):
    options = as_json(client)
    assert client.get_server_metadata(**options)["name"] == "dovetail-serve"
    described = client.get_model_metadata("mlp", **options)
    assert (described["name"], described["versions"]) == ("mlp", ["1", "2"])
    tensors = [
        (t["name"], t["datatype"], [int(s) for s in t["shape"]]) for t in described["inputs"]
    ]
    assert tensors == [("x", "FP32", [-1, 6])]


def test_config(client):
    config = client.get_model_config("narrow", **as_json(client))
    config = config.get("config", config)
    assert (config["name"], config["max_batch_size"]) == ("narrow", 4)
    types = {t["name"]: (t["data_type"], [int(s) for s in t["dims"]]) for t in config["input"]}
    assert types["bfloat16"] == ("TYPE_BF16", [5])
    assert types["uint8"] == ("TYPE_UINT8", [5])


@pytest.mark.parametrize("version", ["", "1", "2"])
def test_inference_is_that_of_the_server(triton, served, version):
    x = rows(7)
    result = triton.client.infer(
        "mlp",
        [triton.tensor("x", x)],
        model_version=version,
        outputs=[triton.output("y")],
        request_id="an id",
        priority=0,
        timeout=10_000_000,
    )
    expected = served.infer("mlp", {"x": x}, version=version or None)["y"]
    np.testing.assert_array_equal(result.as_numpy("y"), expected)
    response = (
        result.get_response() if isinstance(triton, Http) else result.get_response(as_json=True)
    )
    assert (response["id"], response["model_version"]) == ("an id", version or "2")


@pytest.mark.parametrize("model, dtypes", [("narrow", NARROW), ("wide", WIDE)])
def test_every_type_comes_back(triton, model, dtypes):
    arrays = {dtype: values(dtype) for dtype in dtypes}
    sent = [triton.tensor(name, array) for name, array in arrays.items()]
    if model == "narrow":
        # JSON has no form for it in Triton's client, so it is always sent as binary data.
        name, bf16 = "bfloat16", values("float32").astype(ml_dtypes.bfloat16)
        tensor = triton.module.InferInput(name, [3, 5], "BF16")
        sent.append(tensor.set_data_from_numpy(bf16))
        arrays[name] = bf16
    # In another order than the model's.
    outputs = [triton.output(f"{name}.out") for name in reversed(arrays)]
    result = triton.client.infer(model, sent, outputs=outputs)
    for name, array in arrays.items():
        received = result.as_numpy(f"{name}.out")
        assert received.dtype == array.dtype
        np.testing.assert_array_equal(received.astype(array.dtype), array)


def test_outputs_that_are_not_requested_are_left_out(triton):
    arrays = {dtype: values(dtype) for dtype in WIDE}
    sent = [triton.tensor(name, array) for name, array in arrays.items()]
    result = triton.client.infer("wide", sent, outputs=[triton.output("int64.out")])
    assert result.as_numpy("uint64.out") is None
    np.testing.assert_array_equal(result.as_numpy("int64.out"), arrays["int64"])


def test_texts_pass_through_host_functions(triton):
    texts = np.array([b"abc", "né".encode(), b""], object)
    # Labels are not UTF-8, so they are always requested as binary data.
    output = triton.module.InferRequestedOutput("label")
    result = triton.client.infer("texts", [triton.tensor("text", texts)], outputs=[output])
    expected = [b"%d\xff" % (len(t) + (t[0] if t else 0)) for t in texts]
    assert result.as_numpy("label").tolist() == expected


@pytest.mark.parametrize("compression", ["gzip", "deflate"])
def test_compression(triton, served, compression):
    x = rows(9, count=8)
    options = triton.options(compression)
    result = triton.client.infer("mlp", [triton.tensor("x", x)], **options)
    np.testing.assert_array_equal(result.as_numpy("y"), served.infer("mlp", {"x": x})["y"])


@pytest.mark.parametrize(
    "model, version, array, parts",
    [
        ("absent", "", rows(1), ["absent"]),
        ("mlp", "7", rows(1), ["7"]),
        ("mlp", "", rows(1)[:, :4], ["float32[batch, 6]", "float32[3, 4]"]),
        ("mlp", "", rows(1).astype("int32"), ["float32", "int32"]),
    ],
)
def test_refusals_reach_the_user(triton, model, version, array, parts):
    with pytest.raises(InferenceServerException) as error:
        triton.client.infer(model, [triton.tensor("x", array)], model_version=version)
    for part in parts:
        assert part in error.value.message()


@pytest.mark.parametrize(
    "options, part",
    [
        ({"sequence_id": 3, "sequence_start": True}, "sequence_id"),
        ({"priority": 4}, "priority"),
        ({"parameters": {"temperature": 1}}, "temperature"),
    ],
)
def test_what_a_request_cannot_have_is_refused(triton, options, part):
    with pytest.raises(InferenceServerException, match=part):
        triton.client.infer("mlp", [triton.tensor("x", rows(1))], **options)


def test_unknown_outputs_and_classes_are_refused(triton):
    sent = [triton.tensor("x", rows(1))]
    with pytest.raises(InferenceServerException, match="must be among y, got 'q'"):
        triton.client.infer("mlp", sent, outputs=[triton.output("q")])
    with pytest.raises(InferenceServerException, match="classification"):
        triton.client.infer("mlp", sent, outputs=[triton.output("y", class_count=2)])


def test_statistics(triton):
    before = statistics(triton.client)
    triton.client.infer("mlp", [triton.tensor("x", rows(1, count=2))], model_version="1")
    after = statistics(triton.client)
    assert int(after["inference_count"]) - int(before["inference_count"]) == 2
    success = [int(s["inference_stats"]["success"].get("count", 0)) for s in (before, after)]
    assert success[1] - success[0] == 1


def statistics(client):
    (stats,) = client.get_inference_statistics("mlp", "1", **as_json(client))["model_stats"]
    # Protobuf's JSON leaves out zeros.
    return {"inference_count": 0} | stats


def test_index_load_and_unload(client):
    index = client.get_model_repository_index(**as_json(client))
    index = index["models"] if isinstance(index, dict) else index
    assert {(m["name"], m["version"], m["state"]) for m in index} >= {
        ("mlp", "1", "READY"),
        ("spare", "1", "READY"),
    }
    client.unload_model("spare")
    assert not client.is_model_ready("spare")
    client.load_model("spare")
    assert client.is_model_ready("spare")
    with pytest.raises(InferenceServerException, match="absent"):
        client.load_model("absent")


@pytest.mark.parametrize(
    "method, arguments, grpc_part",
    [
        ("get_system_shared_memory_status", (), "no shared memory; send tensors"),
        ("register_system_shared_memory", ("r", "/r", 64), "no shared memory"),
        ("unregister_system_shared_memory", ("r",), "no shared memory"),
        ("get_cuda_shared_memory_status", (), "no shared memory"),
        ("register_cuda_shared_memory", ("r", b"MTIz", 0, 64), "no shared memory"),
        ("unregister_cuda_shared_memory", ("r",), "no shared memory"),
        ("get_trace_settings", ("mlp",), "no trace settings"),
        ("update_trace_settings", ("mlp", {"trace_level": ["OFF"]}), "no trace settings"),
        ("get_log_settings", (), "no log settings"),
        ("update_log_settings", ({"log_info": True},), "no log settings"),
    ],
)
def test_what_is_not_served_is_an_exception_with_our_sentence(client, method, arguments, grpc_part):
    over_grpc = isinstance(client, tritonclient.grpc.InferenceServerClient)
    with pytest.raises(InferenceServerException) as error:
        getattr(client, method)(*arguments)
    assert (grpc_part if over_grpc else "which it does not have") in error.value.message()


def test_tensors_in_shared_memory_are_refused(triton):
    tensor = triton.module.InferInput("x", [3, 6], "FP32")
    tensor.set_shared_memory("region", 72)
    with pytest.raises(InferenceServerException, match="no shared memory"):
        triton.client.infer("mlp", [tensor])


def test_async_infer(served):
    client, answers = Grpc(served), queue.Queue()
    x = rows(3)
    expected = served.infer("mlp", {"x": x})["y"]
    client.client.async_infer(
        "mlp", [client.tensor("x", x)], lambda result, error: answers.put((result, error))
    )
    result, error = answers.get(timeout=30)
    assert error is None
    np.testing.assert_array_equal(result.as_numpy("y"), expected)
    over_http = Http(served, binary=True)
    future = over_http.client.async_infer("mlp", [over_http.tensor("x", x)])
    np.testing.assert_array_equal(future.get_result(timeout=30).as_numpy("y"), expected)
    client.client.close()
    over_http.client.close()
