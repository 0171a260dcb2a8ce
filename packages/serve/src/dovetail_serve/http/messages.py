# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Inference requests and responses of the Open Inference Protocol, with Triton's binary data.

A body is a JSON document, then the bytes of its binary tensors one after another. The header
Inference-Header-Content-Length says where the document ends. Unknown members are
refused, because a misspelled one would otherwise change the answer silently. A member that is null
counts as absent: clients that write all fields of a record send such.

JSON has no NaN and no infinities. They are read and written as `NaN`, `Infinity` and `-Infinity`,
as Python's json and tritonclient do. A client with a stricter parser requests binary data.

Documents have a limit of their own. Parsing one holds the event loop, and a list of empty lists
takes 40 times the memory of its text.
"""

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import orjson

from dovetail_serve.errors import RequestError, TooLarge
from dovetail_serve.http.parameters import (
    Options,
    binary_output,
    binary_size,
    read_options,
    unknown,
    wrong,
)
from dovetail_serve.http.tensors import from_json, to_json
from dovetail_serve.serving.answer import Answer
from dovetail_serve.serving.datatypes import (
    OIP_BYTES,
    check_converted,
    count,
    from_raw,
    oip_name,
    to_raw,
)

# Largest JSON document. The worst that was found, numbers in lists nested 60 deep, holds the event
# loop for about a second. An image of 224 x 224 x 3 floats has 3.1 MB.
MAX_DOCUMENT_BYTES = 4 << 20
_MEMBERS = frozenset({"id", "parameters", "inputs", "outputs", "model_name", "model_version"})
_INPUT_MEMBERS = frozenset({"name", "shape", "datatype", "parameters", "data"})
_OUTPUT_MEMBERS = frozenset({"name", "parameters"})
_INTEGER = frozenset({int})


class InferRequest(NamedTuple):
    """An inference request.

    Attributes:
        inputs: Arrays by name.
        outputs: Requested outputs in order, with True for binary data; None for all.
        id: Returned with the answer.
        options: Its parameters.
    """

    inputs: dict[str, np.ndarray]
    outputs: dict[str, bool] | None
    id: str | None
    options: Options


_DEFAULTS, _NO_TAIL = Options(), memoryview(b"")


def parse(
    body: bytes, json_length: int | None, *, model: str = "", version: str | None = None
) -> InferRequest:
    """Returns the request of a body.

    Args:
        body: The body, decompressed.
        json_length: Length of its JSON document; None for the whole body.
        model: Name of the model in the path. A document may repeat it, as KServe's client does.
        version: Version in the path, likewise.

    Raises:
        RequestError: The body is malformed. The message gives the expected and the received value.
        TooLarge: The JSON document has more than `MAX_DOCUMENT_BYTES`.
    """
    size = len(body) if json_length is None else json_length
    if size > MAX_DOCUMENT_BYTES:
        raise TooLarge(
            f"a JSON document must have at most {MAX_DOCUMENT_BYTES} bytes, got {size}; send "
            "tensors as binary data after it, with the header Inference-Header-Content-Length"
        )
    if json_length is None:
        document, tail = _document(body), _NO_TAIL
    else:
        document, tail = _document(body[:json_length]), memoryview(body)[json_length:]
    if not document.keys() <= _MEMBERS:
        raise unknown("the request", document, _MEMBERS)
    for name, value in (("model_name", model), ("model_version", version)):
        if document.get(name) not in (None, value):
            path = "which has none" if value is None else repr(value)
            raise wrong(name, f"that of the path, {path}", document[name], "it in the path alone")
    options = _DEFAULTS if document.get("parameters") is None else read_options(document)
    request_id = document.get("id")
    if request_id is not None:
        _check_id(request_id)
    return InferRequest(
        _inputs(document.get("inputs"), tail, json_length),
        _outputs(document.get("outputs"), options.binary),
        request_id,
        options,
    )


def build(request: InferRequest, answer: Answer) -> tuple[bytes, int | None]:
    """Returns the body of a response, and the length of its JSON if binary data follow.

    Args:
        request: Its requested outputs must be outputs of the model.
        answer: Outputs by name.
    """
    outputs, tail = [], []
    requested = request.outputs or dict.fromkeys(answer.outputs, request.options.binary)
    for name, binary in requested.items():
        array = answer.outputs[name]
        output = {"name": name, "datatype": oip_name(array.dtype), "shape": array.shape}
        if binary:
            data = to_raw(array, tensor=name)
            output["parameters"] = {"binary_data_size": len(data)}
            tail.append(data)
        else:
            output["data"] = to_json(array, tensor=name)
        outputs.append(output)
    document = {"model_name": answer.model, "model_version": answer.version, "outputs": outputs}
    if request.id is not None:
        document["id"] = request.id
    text = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    if b"null" in text:  # what orjson writes for NaN and infinities
        text = json.dumps(document, default=np.ndarray.tolist).encode()
    if any(requested.values()):
        return b"".join((text, *tail)), len(text)
    return text, None


def check_outputs(request: InferRequest, names: Sequence[str]) -> None:
    """Raises RequestError if a requested output is none of `names`."""
    for name in request.outputs or ():
        if name not in names:
            raise RequestError(
                f"requested outputs must be among {', '.join(names)}, got {name[:128]!r}; leave "
                "out `outputs` to get all"
            )


def _document(text: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        document = _lenient_document(text, error)
    if not isinstance(document, dict):
        raise wrong("the body", "a JSON object", document, '{"inputs": [...]}')
    return document


def _lenient_document(text: bytes, error: orjson.JSONDecodeError) -> Any:
    """Returns a document with NaN or infinities. orjson does not read them."""
    if b"NaN" in text or b"Infinity" in text:
        try:
            return json.loads(text, parse_float=_finite)
        except (ValueError, RecursionError):
            pass  # orjson's message is the better one
    raise RequestError(
        f"the body must be a JSON document, got {len(text)} bytes and at line {error.lineno}, "
        f"column {error.colno}: {error.msg}; send binary data after it, with the header "
        "Inference-Header-Content-Length"
    )


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is out of the range of a double")
    return value


def _check_id(request_id: object) -> None:
    if not isinstance(request_id, str):
        raise wrong("id", "a string", request_id, '"id": "42"')
    try:
        request_id.encode()  # json, unlike orjson, reads half of a surrogate pair
    except UnicodeEncodeError:
        raise wrong("id", "Unicode", request_id, "both halves of a surrogate pair") from None


def _inputs(entries: Any, tail: memoryview, json_length: int | None) -> dict[str, np.ndarray]:
    if not isinstance(entries, list) or not entries:
        raise wrong("inputs", "a list with an object for each input", entries, '"inputs": [...]')
    inputs: dict[str, np.ndarray] = {}
    offset = texts = 0
    for entry in entries:
        name, datatype, shape = _described(entry)
        if name in inputs:
            raise wrong("the names of inputs", "different", name, "each input once")
        size = binary_size(entry, name, datatype)
        if size is None:
            inputs[name] = from_json(datatype, shape, _data(entry, name), tensor=name)
            continue
        if json_length is None:
            raise RequestError(
                "a request with binary data must have the header Inference-Header-Content-Length, "
                f"got none, and input {name!r} with binary_data_size={size}; send the length of "
                "the JSON document"
            )
        if size > len(tail) - offset:
            raise _untiled(len(tail), offset + size, f"up to the end of input {name!r}")
        if datatype == OIP_BYTES:
            texts += count(shape, tensor=name)
            check_converted(texts)
        data = tail[offset : offset + size]
        inputs[name] = from_raw(datatype, shape, data, tensor=name)
        offset += size
    if offset != len(tail):
        raise _untiled(len(tail), offset, "in all")
    return inputs


def _described(entry: Any) -> tuple[str, str, list[int]]:
    """Returns name, datatype and shape of an input."""
    if not isinstance(entry, dict):
        raise wrong("an input", "an object", entry, '{"name": ..., "shape": ...}')
    if not entry.keys() <= _INPUT_MEMBERS:
        raise unknown("an input", entry, _INPUT_MEMBERS)
    name, datatype, shape = entry.get("name"), entry.get("datatype"), entry.get("shape")
    if not isinstance(name, str):
        raise wrong("the name of an input", "a string", name, '"name": "x"')
    if not isinstance(datatype, str):
        raise wrong(f"the datatype of input {name!r}", "a string", datatype, '"datatype": "FP32"')
    if not isinstance(shape, list) or not _INTEGER.issuperset(map(type, shape)):
        raise wrong(f"the shape of input {name!r}", "a list of integers", shape, '"shape": [1, 4]')
    return name, datatype, shape


def _data(entry: dict[str, Any], name: str) -> list[Any]:
    data = entry.get("data")
    if not isinstance(data, list):
        raise wrong(f"data of input {name!r}", "a list of values", data, '"data": [1, 2]')
    return data


def _outputs(entries: Any, binary: bool) -> dict[str, bool] | None:
    if entries is None or entries == []:
        return None
    if not isinstance(entries, list):
        raise wrong("outputs", "a list of objects", entries, '"outputs": [{"name": "y"}]')
    outputs: dict[str, bool] = {}
    for entry in entries:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str):
            raise wrong("an output", "an object with a name", entry, '{"name": "y"}')
        if not entry.keys() <= _OUTPUT_MEMBERS:
            raise unknown(f"output {name!r}", entry, _OUTPUT_MEMBERS)
        if name in outputs:
            raise wrong("the names of outputs", "different", name, "each output once")
        outputs[name] = binary_output(entry, name, default=binary)
    return outputs


def _untiled(size: int, expected: int, where: str) -> RequestError:
    return RequestError(
        "binary data must fill the body after the JSON document exactly, expected "
        f"{expected} bytes {where}, got {size}; check binary_data_size and "
        "Inference-Header-Content-Length"
    )
