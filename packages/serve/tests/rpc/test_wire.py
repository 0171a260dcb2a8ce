# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Messages have the protocol's bytes; tests/triton compares each field with Triton's client."""

import struct

from google.protobuf import descriptor_pool

from dovetail_serve.rpc.wire import DATA_TYPES, MESSAGES, message


def field(number: int, wire: int, payload: bytes) -> bytes:
    """Returns a field by the encoding's specification, for lengths and numbers below 128."""
    return bytes([number << 3 | wire]) + payload


def text(number: int, value: bytes) -> bytes:
    return field(number, 2, bytes([len(value)]) + value)


def test_a_request_has_the_bytes_of_the_protocol():
    raw = struct.pack("<2f", 1.5, -2.0)
    parameter = text(1, b"timeout") + text(2, field(2, 0, b"\x07"))
    tensor = text(1, b"x") + text(2, b"FP32") + text(3, b"\x01\x02")
    data = (
        text(1, b"mlp")
        + text(2, b"3")
        + text(3, b"id")
        + text(4, parameter)
        + text(5, tensor)
        + text(6, text(1, b"y"))
        + text(7, raw)
    )
    request = MESSAGES["ModelInferRequest"](
        model_name="mlp",
        model_version="3",
        id="id",
        parameters={"timeout": MESSAGES["InferParameter"](int64_param=7)},
        inputs=[{"name": "x", "datatype": "FP32", "shape": [1, 2]}],
        outputs=[{"name": "y"}],
        raw_input_contents=[raw],
    )
    assert request.SerializeToString() == data
    assert MESSAGES["ModelInferRequest"].FromString(data) == request


def test_typed_contents_are_packed():
    tensor = MESSAGES["ModelInferRequest.InferInputTensor"](contents={"fp64_contents": [0.5]})
    assert tensor.SerializeToString() == text(5, text(7, struct.pack("<d", 0.5)))


def test_a_parameter_holds_one_value():
    parameter = MESSAGES["InferParameter"](bool_param=True)
    parameter.string_param = "a"
    assert parameter.WhichOneof("parameter_choice") == "string_param"
    assert parameter.SerializeToString() == text(3, b"a")


def test_numbers_of_data_types_are_those_of_triton():
    # https://github.com/triton-inference-server/common, model_config.proto
    numbers = {"TYPE_BOOL": 1, "TYPE_INT8": 6, "TYPE_FP16": 10, "TYPE_FP32": 11, "TYPE_BF16": 14}
    assert {name: DATA_TYPES.index(name) for name in numbers} == numbers
    tensor = MESSAGES["ModelInput"](data_type="TYPE_FP32")
    assert tensor.SerializeToString() == field(2, 0, b"\x0b")


def test_the_default_pool_has_none_of_the_messages():
    descriptor = MESSAGES["ModelInferRequest"].DESCRIPTOR
    assert descriptor.full_name == "inference.ModelInferRequest"
    assert descriptor.file.pool is not descriptor_pool.Default()


def test_a_message_has_the_values_of_a_document():
    config = {
        "name": "mlp",
        "platform": "jax_stablehlo",
        "backend": "jax",
        "max_batch_size": 8,
        "input": [
            {"name": "x", "data_type": "TYPE_BF16", "dims": [5, 2]},
            {"name": "t", "data_type": "TYPE_STRING", "dims": []},
        ],
        "output": [{"name": "y", "data_type": "TYPE_FP8_E4M3FN", "dims": [3]}],
    }
    got = message("ModelConfigResponse", {"config": config}).config
    assert (got.name, got.platform, got.backend) == ("mlp", "jax_stablehlo", "jax")
    assert got.max_batch_size == 8
    assert [(t.name, DATA_TYPES[t.data_type], list(t.dims)) for t in got.input] == [
        ("x", "TYPE_BF16", [5, 2]),
        ("t", "TYPE_STRING", []),
    ]
    # Triton has no number for FP8.
    assert [(t.name, DATA_TYPES[t.data_type], list(t.dims)) for t in got.output] == [
        ("y", "TYPE_INVALID", [3])
    ]


def test_a_message_leaves_our_additions_out():
    entry = {"name": "m", "version": "2", "state": "READY", "reason": "", "digest": "sha256:ab"}
    (index,) = message("RepositoryIndexResponse", {"models": [entry]}).models
    assert (index.name, index.version, index.state) == ("m", "2", "READY")
    largest = {"name": "m", "inference_count": 2**64 - 1, "inference_stats": {"cache_hit": {}}}
    (statistics,) = message("ModelStatisticsResponse", {"model_stats": [largest]}).model_stats
    assert statistics.inference_count == 2**64 - 1
