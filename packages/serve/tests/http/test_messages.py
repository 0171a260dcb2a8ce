# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Requests are read to the last member, or refused in a sentence."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail_serve.errors import RequestError, TooLarge
from dovetail_serve.http.messages import MAX_DOCUMENT_BYTES, build, check_outputs, parse
from dovetail_serve.serving import datatypes
from dovetail_serve.serving.answer import Answer, Timing

X = {"name": "x", "datatype": "INT32", "shape": [2], "data": [1, 2]}
NAN = {"datatype": "FP32", "data": [1, math.nan]}
TIMING = Timing(
    queue_s=0.0, pad_s=0.0, compute_s=0.0, split_s=0.0, rows=1, batch_rows=1, padded_rows=1
)


def request(**members):
    return parse(json.dumps({"inputs": [X], **members}).encode(), None)


def answer(**outputs):
    return Answer(outputs=outputs, model="m", version="3", timing=TIMING)


def test_all_members_are_read():
    parameters = {"priority": 2, "timeout": 1500, "binary_data_output": True, "explain": True}
    outputs = [{"name": "b"}, {"name": "a", "parameters": {"binary_data": False}}]
    read = request(id="7", parameters=parameters, outputs=outputs)
    assert read.inputs["x"].tolist() == [1, 2]
    assert read.id == "7"
    assert read.options == (True, 2, pytest.approx(0.0015), True)
    assert list(read.outputs.items()) == [("b", True), ("a", False)]


def test_absent_members_have_defaults():
    read = request(id=None, parameters=None, outputs=None)
    assert read[1:] == (None, None, (False, None, None, False))
    assert request(parameters={"timeout": 0}).options.deadline_s is None
    assert request(outputs=[]).outputs is None
    # tritonclient's values for a request outside of a sequence.
    assert request(parameters={"sequence_id": 0, "sequence_start": False}).options.priority is None


def test_nan_and_infinities_are_read():
    text = (
        b'{"inputs":[{"name":"x","datatype":"FP32","shape":[3],"data":[NaN,Infinity,-Infinity]}]}'
    )
    values = parse(text, None).inputs["x"].tolist()
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf]


@given(
    tensors=st.lists(st.lists(st.integers(0, 255), max_size=5), min_size=1, max_size=4),
    shift=st.integers(0, 7),
)
@settings(max_examples=40, deadline=None)
def test_binary_tensors_tile_the_body(tensors, shift):
    inputs = [
        {
            "name": f"x{i}",
            "datatype": "UINT8",
            "shape": [len(values)],
            "parameters": {"binary_data_size": len(values)},
        }
        for i, values in enumerate(tensors)
    ]
    text = json.dumps({"inputs": inputs}).encode() + b" " * shift
    tail = b"".join(map(bytes, tensors))
    read = parse(text + tail, len(text))
    assert [read.inputs[f"x{i}"].tolist() for i in range(len(tensors))] == tensors
    for wrong in (tail + b"\0", tail[:-1]):
        if wrong != tail:
            with pytest.raises(RequestError, match=r"exactly, expected \d+ bytes .*, got \d+; che"):
                parse(text + wrong, len(text))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"output": []}, "no members but id, inputs, .*, got 'output'; correct"),
        ({"id": 7}, "id must be a string, got '7'; write"),
        ({"inputs": None}, "inputs must be a list .*, got nothing; write"),
        ({"inputs": []}, r"inputs must be a list .*, got '\[\]'; write"),
        ({"inputs": [1]}, "an input must be an object, got '1'; write"),
        ({"inputs": [X, X]}, "names of inputs must be different, got 'x'; write"),
        ({"inputs": [X | {"dtype": "FP32"}]}, "no members but .*, got 'dtype'; correct"),
        ({"inputs": [X | {"name": 1}]}, "the name of an input must be a string, got '1'; write"),
        ({"inputs": [X | {"datatype": 1}]}, "datatype of input 'x' must be a string, got '1'; w"),
        ({"inputs": [X | {"shape": [True]}]}, "list of integers, got .*True.*; write"),
        ({"inputs": [X | {"shape": 2}]}, "list of integers, got '2'; write"),
        ({"inputs": [X | {"data": None}]}, "a list of values, got nothing; write"),
        ({"inputs": [X | {"parameters": {"binary_data_size": 8}}]}, "got 'both'; write one"),
        ({"inputs": [X | {"parameters": {"content-type": "np"}}]}, "got 'content-type'; correct"),
        ({"inputs": [X | {"parameters": []}]}, "of input 'x' must be an object, got"),
        ({"parameters": 3}, "parameters of the request must be an object, got '3'; write"),
        ({"parameters": {"prority": 3}}, "got 'prority'; correct"),
        ({"parameters": {"priority": True}}, "'priority' must be an integer from 0 .*, got 'True'"),
        ({"parameters": {"priority": -1}}, "'priority' must be an integer from 0 .*, got '-1'"),
        ({"parameters": {"timeout": 1.5}}, "'timeout' must be an integer from 0 .*, got '1.5'"),
        # Only the parser for documents with NaN reads such.
        ({"inputs": [X | NAN], "parameters": {"timeout": 10**400}}, "to 18446744.*, got '1000"),
        ({"inputs": [X | NAN], "parameters": {"priority": 1 << 64}}, "to 18446744.*, got '184"),
        ({"inputs": [X | NAN], "id": "\ud800"}, r"id must be Unicode, got '\\ud800'; write both"),
        ({"parameters": {"explain": 1}}, "'explain' must be true or false, got '1'; write"),
        ({"parameters": {"sequence_id": 5}}, "must be stateless.*, got sequence_id=5; leave it"),
        ({"parameters": {"sequence_start": True}}, "stateless.*got sequence_start=True; leave"),
        ({"outputs": {}}, "outputs must be a list of objects, got '{}'; write"),
        ({"outputs": ["y"]}, "an output must be an object with a name, got 'y'; write"),
        ({"outputs": [{"name": "y", "shape": []}]}, "no members but .*, got 'shape'; correct"),
        ({"outputs": [{"name": "y"}] * 2}, "names of outputs must be different, got 'y'"),
        (
            {"outputs": [{"name": "y", "parameters": {"classification": 3}}]},
            "no members but binary_data, got 'classification'; correct",
        ),
        (
            {"outputs": [{"name": "y", "parameters": {"shared_memory_region": "r"}}]},
            "no shared memory, got shared_memory_region='r'; send binary data",
        ),
    ],
)
def test_malformed_members_are_refused(members, message):
    with pytest.raises(RequestError, match=message):
        request(**members)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "must be a JSON document, got 0 bytes and at line 1, column 1: .*; send binary"),
        (b"{", "must be a JSON document, got 1 bytes"),
        (b"[]", r"the body must be a JSON object, got '\[\]'; write"),
        (b'{"inputs": [NaN', "must be a JSON document"),
        (b"\xff", "must be a JSON document"),
        (b"[" * 3000, "must be a JSON document"),
        (b"[" * 90_000 + b"NaN", "must be a JSON document"),
        (b'{"NaN": 1e400}', "must be a JSON document"),
    ],
)
def test_other_texts_are_refused(text, message):
    with pytest.raises(RequestError, match=message):
        parse(text, None)


@pytest.mark.parametrize("tail", [b"", b"7"])
def test_large_documents_are_refused_before_they_are_parsed(tail):
    """A list of empty lists takes 40 times its text, and the event loop the longest."""
    text = b"[" + b"[]," * (MAX_DOCUMENT_BYTES // 3) + b"no JSON"
    with pytest.raises(TooLarge) as error:
        parse(text + tail, len(text) if tail else None)
    for part in (
        f"must have at most {MAX_DOCUMENT_BYTES} bytes, got {len(text)}; send tensors",
        "as binary data after it, with the header Inference-Header-Content-Length",
    ):
        assert part in str(error.value)


def test_binary_data_may_be_larger_than_a_document():
    size = MAX_DOCUMENT_BYTES + 1
    parameters = {"binary_data_size": size}
    entry = {"name": "x", "datatype": "UINT8", "shape": [size], "parameters": parameters}
    text = json.dumps({"inputs": [entry]}).encode()
    largest = text + b" " * (MAX_DOCUMENT_BYTES - len(text))
    assert parse(largest + bytes(size), len(largest)).inputs["x"].nbytes == size


def test_elements_of_all_texts_together_have_a_bound(monkeypatch):
    monkeypatch.setattr(datatypes, "MAX_CONVERTED", 5)
    entries = [
        {
            "name": name,
            "datatype": datatype,
            "shape": [3],
            "parameters": {"binary_data_size": 12},
        }
        for name, datatype in (("a", "BYTES"), ("b", "INT32"), ("c", "BYTES"))
    ]
    two = json.dumps({"inputs": entries[:2]}).encode()
    assert parse(two + bytes(24), len(two)).inputs["a"].tolist() == [b"", b"", b""]
    three = json.dumps({"inputs": entries}).encode()
    with pytest.raises(TooLarge, match=r"at most 5 elements of BYTES .*, got 6; divide it"):
        parse(three + bytes(36), len(three))


def test_the_largest_timeout_of_a_client_is_read():
    assert request(parameters={"timeout": (1 << 64) - 1}).options.deadline_s == 2**64 * 1e-6


def test_binary_data_need_the_header():
    entry = {"name": "x", "datatype": "UINT8", "shape": [0], "parameters": {"binary_data_size": 0}}
    text = json.dumps({"inputs": [entry]}).encode()
    with pytest.raises(
        RequestError, match=r"must have the header .*, got none, .*; send the length"
    ):
        parse(text, None)
    assert parse(text, len(text)).inputs["x"].shape == (0,)


def test_requested_outputs_come_in_their_order():
    made = answer(a=np.float32([[1.5]]), b=np.int32([7, 8]), c=np.bool_([True]))
    read = request(outputs=[{"name": "b", "parameters": {"binary_data": True}}, {"name": "a"}])
    body, length = build(read, made)
    document = json.loads(body[:length])
    assert document["model_name"] == "m"
    assert document["model_version"] == "3"
    assert document["outputs"] == [
        {
            "name": "b",
            "datatype": "INT32",
            "shape": [2],
            "parameters": {"binary_data_size": 8},
        },
        {"name": "a", "datatype": "FP32", "shape": [1, 1], "data": [1.5]},
    ]
    assert body[length:] == np.array([7, 8], "<i4").tobytes()


def test_non_finite_outputs_keep_their_values():
    values = np.array([0.1, np.nan, np.inf, -np.inf], "float32")
    body, length = build(request(), answer(y=values, t=np.array([b"null"], object)))
    assert length is None
    outputs = {output["name"]: output["data"] for output in json.loads(body)["outputs"]}
    np.testing.assert_array_equal(np.array(outputs["y"], "float32"), values)
    assert outputs["t"] == ["null"]


def test_unknown_outputs_are_refused():
    read = request(outputs=[{"name": "z"}])
    with pytest.raises(RequestError, match="must be among a, b, got 'z'; leave out"):
        check_outputs(read, ("a", "b"))
    check_outputs(read, ("a", "z"))
    check_outputs(request(), ())
