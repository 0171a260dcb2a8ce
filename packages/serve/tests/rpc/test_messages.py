# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Requests become arrays and answers become responses; what does not fit is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail_serve.errors import RequestError, TooLarge
from dovetail_serve.rpc.messages import check_outputs, read_request, write_response
from dovetail_serve.rpc.wire import MESSAGES
from dovetail_serve.serving import datatypes
from dovetail_serve.serving.answer import Answer, Timing

TIMING = Timing(
    queue_s=0.0, pad_s=0.0, compute_s=0.0, split_s=0.0, rows=1, batch_rows=1, padded_rows=1
)
TYPED = {
    "bool": ("BOOL", "bool_contents"),
    "int8": ("INT8", "int_contents"),
    "int16": ("INT16", "int_contents"),
    "int32": ("INT32", "int_contents"),
    "int64": ("INT64", "int64_contents"),
    "uint8": ("UINT8", "uint_contents"),
    "uint16": ("UINT16", "uint_contents"),
    "uint32": ("UINT32", "uint_contents"),
    "uint64": ("UINT64", "uint64_contents"),
    "float32": ("FP32", "fp32_contents"),
    "float64": ("FP64", "fp64_contents"),
}


def request(**fields):
    return MESSAGES["ModelInferRequest"](model_name="mlp", **fields)


def tensor(name="x", datatype="FP32", shape=(1, 2), **fields):
    return {"name": name, "datatype": datatype, "shape": shape, **fields}


def parameter(**value):
    return MESSAGES["InferParameter"](**value)


def test_fields_of_a_request():
    call = read_request(
        request(
            model_version="stable",
            id="7",
            inputs=[tensor("b"), tensor("a", shape=(2, 1))],
            raw_input_contents=[np.float32([3, 4]).tobytes(), np.float32([5, 6]).tobytes()],
            outputs=[{"name": "z"}, {"name": "y"}],
            parameters={
                "priority": parameter(uint64_param=2),
                "timeout": parameter(int64_param=1500),
                "triton_enable_empty_final_response": parameter(bool_param=True),
                "sequence_id": parameter(string_param=""),
                "sequence_start": parameter(bool_param=False),
            },
        )
    )
    assert (call.model, call.version, call.id) == ("mlp", "stable", "7")
    assert (call.outputs, call.priority, call.timeout_s) == (("z", "y"), 2, 0.0015)
    assert {name: a.tolist() for name, a in call.inputs.items()} == {
        "b": [[3.0, 4.0]],
        "a": [[5.0], [6.0]],
    }


def test_defaults_of_a_request():
    call = read_request(request(parameters={"timeout": parameter(int64_param=0)}))
    assert (call.version, call.outputs, call.priority, call.timeout_s) == (None, (), 0, None)


@pytest.mark.parametrize("dtype", TYPED)
def test_typed_contents(dtype):
    datatype, field = TYPED[dtype]
    if dtype == "bool":
        values = np.random.default_rng(5).integers(0, 2, 6).astype(bool)
    elif dtype.startswith("float"):
        values = np.random.default_rng(5).normal(size=6).astype(dtype)
    else:
        info = np.iinfo(dtype)
        values = np.array([info.min, info.max, 0, 1, 7, 11], dtype)
    inputs = [tensor(datatype=datatype, shape=(3, 2), contents={field: values.tolist()})]
    array = read_request(request(inputs=inputs)).inputs["x"]
    assert array.dtype == dtype
    np.testing.assert_array_equal(array, values.reshape(3, 2))


def test_typed_bytes_and_an_empty_tensor():
    texts = tensor("a", "BYTES", (2, 1), contents={"bytes_contents": [b"", b"\xff\0"]})
    call = read_request(request(inputs=[texts, tensor(shape=(0, 4))]))
    assert call.inputs["a"].tolist() == [[b""], [b"\xff\0"]]
    assert call.inputs["x"].shape == (0, 4)
    assert call.inputs["x"].dtype == np.float32


RAW = b"12345678"
REFUSALS = {
    "too few raw": (
        {"inputs": [tensor("a"), tensor("b")], "raw_input_contents": [RAW]},
        ["one element for each input, 2", "got 1", "send all inputs raw"],
    ),
    "raw and typed": (
        {"inputs": [tensor(contents={"fp32_contents": [1, 2]})], "raw_input_contents": [RAW]},
        ["raw or typed", "got `contents` of 'x'", "send all"],
    ),
    "wrong size": (
        {"inputs": [tensor()], "raw_input_contents": [b"123"]},
        ["'x' of FP32 and shape [1, 2]", "8 bytes", "got 3"],
    ),
    "twice": (
        {"inputs": [tensor(), tensor()], "raw_input_contents": [RAW, RAW]},
        ["must differ", "got 'x' twice", "once"],
    ),
    "no typed form": (
        {"inputs": [tensor(datatype="FP16", contents={"fp32_contents": [1, 2]})]},
        ["'x' of FP16 must be raw", "got no raw_input_contents", "send its"],
    ),
    "other field": (
        {"inputs": [tensor(contents={"fp64_contents": [1, 2]})]},
        ["2 values in contents.fp32_contents", "got {'fp64_contents': 2}"],
    ),
    "two fields": (
        {"inputs": [tensor(contents={"fp32_contents": [1, 2], "int_contents": [1]})]},
        ["got {'int_contents': 1, 'fp32_contents': 2}"],
    ),
    "no values": ({"inputs": [tensor()]}, ["must have 2 values", "got none"]),
    "too many values": (
        {"inputs": [tensor(contents={"fp32_contents": [1, 2, 3]})]},
        ["must have 2 values", "got {'fp32_contents': 3}"],
    ),
    "out of range": (
        {"inputs": [tensor(datatype="INT8", contents={"int_contents": [1, -129]})]},
        ["INT8 must be from -128 to 127", "got -129", "in range"],
    ),
    "unknown datatype": (
        {"inputs": [tensor(datatype="FLOAT")]},
        ["must be one of BOOL", "got 'FLOAT'", "write"],
    ),
    "sequence": (
        {"parameters": {"sequence_id": parameter(int64_param=1)}},
        ["among priority, timeout", "got 'sequence_id'", "no state", "leave"],
    ),
    "unknown parameter": (
        {"parameters": {"temperature": parameter(double_param=1)}},
        ["got 'temperature'", "leave it out"],
    ),
    "negative timeout": (
        {"parameters": {"timeout": parameter(int64_param=-1)}},
        ["'timeout' must be from 0", "got int64_param=-1", "microseconds"],
    ),
    "priority as text": (
        {"parameters": {"priority": parameter(string_param="1")}},
        ["int64_param or uint64_param", "got string_param='1'", "served first"],
    ),
    "parameter without a value": (
        {"parameters": {"priority": parameter()}},
        ["got None=None"],
    ),
    "shared memory in": (
        {"inputs": [tensor(parameters={"shared_memory_region": parameter(string_param="r")})]},
        ["input 'x'", "among binary_data_size", "no shared memory", "send the tensor"],
    ),
    "shared memory out": (
        {
            "outputs": [
                {
                    "name": "y",
                    "parameters": {"shared_memory_region": parameter(string_param="r")},
                }
            ]
        },
        ["output 'y'", "no shared memory"],
    ),
    "classification": (
        {"outputs": [{"name": "y", "parameters": {"classification": parameter(int64_param=2)}}]},
        ["output 'y'", "does not classify", "largest values"],
    ),
    "output twice": (
        {"outputs": [{"name": "y"}, {"name": "y"}]},
        ["requested outputs must differ", "got 'y' twice"],
    ),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_refusals_say_what_was_expected_and_received(case):
    fields, parts = REFUSALS[case]
    with pytest.raises(RequestError) as refusal:
        read_request(request(**fields))
    for part in parts:
        assert part in str(refusal.value)
    assert refusal.value.grpc_status == "INVALID_ARGUMENT"


def test_parameters_that_repeat_the_message_are_taken():
    sent = {
        "binary_data_size": parameter(int64_param=8),
        "content_type": parameter(string_param="np"),
    }
    fields = {"raw_input_contents": [RAW], "parameters": {"content_type": sent["content_type"]}}
    inputs = [tensor(shape=(2,), parameters=sent)]
    assert read_request(request(inputs=inputs, **fields)).inputs["x"].shape == (2,)
    for name, value, message in (
        ("binary_data_size", parameter(int64_param=4), "raw contents, 8, got 4; leave it out"),
        ("content_type", parameter(string_param="base64"), "be np, got 'base64'; decode"),
    ):
        inputs = [tensor(shape=(2,), parameters={name: value})]
        with pytest.raises(RequestError, match=message):
            read_request(request(inputs=inputs, **fields))


def test_elements_that_are_converted_one_by_one_have_a_bound(monkeypatch):
    monkeypatch.setattr(datatypes, "MAX_CONVERTED", 5)
    texts = [tensor(name, "BYTES", (3,)) for name in "ab"]
    numbers = tensor("n", "INT32", (3,))
    raw = [bytes(12)] * 2
    read_request(request(inputs=[texts[0], numbers], raw_input_contents=raw))
    typed = [numbers | {"name": name, "contents": {"int_contents": [1, 2, 3]}} for name in "cd"]
    for fields in ({"inputs": texts, "raw_input_contents": raw}, {"inputs": typed}):
        with pytest.raises(TooLarge, match=r"at most 5 elements of .*, got 6; divide it"):
            read_request(request(**fields))


def answer(**outputs):
    return Answer(outputs=outputs, model="mlp", version="3", timing=TIMING)


def test_a_response_has_the_requested_outputs_in_their_order():
    call = read_request(request(id="9", outputs=[{"name": "z"}, {"name": "x"}]))
    z = np.array([[b"a", b"bc"]], object)
    response = write_response(call, answer(x=np.int16([[3], [4]]), y=np.zeros(1), z=z))
    assert (response.model_name, response.model_version, response.id) == ("mlp", "3", "9")
    assert [(o.name, o.datatype, list(o.shape)) for o in response.outputs] == [
        ("z", "BYTES", [1, 2]),
        ("x", "INT16", [2, 1]),
    ]
    assert list(response.raw_output_contents) == [
        b"\1\0\0\0a\2\0\0\0bc",
        np.array([3, 4], "<i2").tobytes(),
    ]


def test_a_response_has_all_outputs_by_default():
    response = write_response(read_request(request()), answer(b=np.zeros(1), a=np.ones(2)))
    assert [o.name for o in response.outputs] == ["b", "a"]


def test_an_output_that_the_answer_lacks_is_refused():
    # The version may change between the check of the request and its answer.
    call = read_request(request(outputs=[{"name": "z"}]))
    with pytest.raises(RequestError, match=r"among y, got 'z'; leave"):
        write_response(call, answer(y=np.zeros(1)))


def test_an_unknown_output_is_refused():
    with pytest.raises(RequestError, match=r"among a, b, got 'c'; leave `outputs` empty"):
        check_outputs(["a", "c"], {"b": 1, "a": 2})


@given(st.lists(st.binary(max_size=6), max_size=4), st.lists(st.integers(-3, 5), max_size=3))
def test_any_raw_contents_are_read_or_refused(contents, shape):
    message = request(
        inputs=[tensor("x", "INT16", shape), tensor("y", "BYTES", shape)],
        raw_input_contents=contents,
    )
    try:
        call = read_request(message)
    except RequestError:
        return
    assert [a.shape for a in call.inputs.values()] == [tuple(shape)] * 2
