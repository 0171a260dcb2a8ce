# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Members that the clients of KServe and MLServer send: taken if they change nothing."""

import json

import pytest

from dovetail_serve.errors import RequestError
from dovetail_serve.http.messages import parse

X = {"name": "x", "datatype": "INT32", "shape": [2], "data": [1, 2]}
TEXT = {"name": "x", "datatype": "BYTES", "shape": [1], "data": ["a"]}


def request(entry=X, **members):
    text = json.dumps({"inputs": [entry], **members}).encode()
    return parse(text, None, model="mlp", version="3")


@pytest.mark.parametrize("content_type", ["np", "str", None])
def test_a_content_type_that_changes_nothing_is_taken(content_type):
    headers = {"content_type": content_type, "headers": None}
    assert request(parameters=headers).inputs["x"].tolist() == [1, 2]
    entry = TEXT if content_type == "str" else X
    read = request(entry | {"parameters": headers | {"binary_data_size": None}})
    assert read.inputs["x"].tolist() == ([b"a"] if content_type == "str" else [1, 2])


@pytest.mark.parametrize(
    ("entry", "members", "message"),
    [
        (X | {"parameters": {"content_type": "pd"}}, {}, "input 'x' must be np, got 'pd'; decode"),
        (TEXT | {"parameters": {"content_type": "base64"}}, {}, "must be str, got 'base64'; dec"),
        (X, {"parameters": {"content_type": "pd"}}, "the request must be np or str, got 'pd'; d"),
        (X | {"parameters": {"headers": {}}}, {}, "no members but .*, got 'headers'; correct"),
    ],
)
def test_other_content_types_are_refused(entry, members, message):
    with pytest.raises(RequestError, match=message):
        request(entry, **members)


def test_a_document_may_repeat_the_model_of_the_path():
    assert request(model_name="mlp", model_version="3").inputs["x"].tolist() == [1, 2]
    assert request(model_name=None, model_version=None).inputs["x"].tolist() == [1, 2]
    for name, value, expected in (("model_name", "x", "mlp"), ("model_version", "2", "3")):
        message = f"{name} must be that of the path, '{expected}', got '{value}'; write it in"
        with pytest.raises(RequestError, match=message):
            request(**{name: value})


def test_a_version_beside_a_path_without_one_is_refused():
    text = json.dumps({"inputs": [X], "model_version": "3"}).encode()
    with pytest.raises(RequestError, match="must be that of the path, which has none, got '3'"):
        parse(text, None, model="mlp")
