# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""An inference request of the protocol becomes arrays, and an answer becomes its response.

Outputs are always raw. Inputs are raw, all of them in `raw_input_contents`, or typed, each in its
`contents`, as clients of KServe send them.
"""

import dataclasses
import operator
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from dovetail_serve.errors import RequestError
from dovetail_serve.rpc.wire import MESSAGES
from dovetail_serve.serving.answer import Answer
from dovetail_serve.serving.datatypes import (
    OIP_BYTES,
    check_content_type,
    check_converted,
    count,
    dtype_of,
    from_raw,
    oip_name,
    to_raw,
)

# Field of `contents` by datatype, with the dtype of its elements. FP16, BF16 and the extensions
# have no typed form.
_TYPED = {
    "BOOL": ("bool_contents", np.dtype("bool")),
    **dict.fromkeys(("INT8", "INT16", "INT32"), ("int_contents", np.dtype("int32"))),
    "INT64": ("int64_contents", np.dtype("int64")),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), ("uint_contents", np.dtype("uint32"))),
    "UINT64": ("uint64_contents", np.dtype("uint64")),
    "FP32": ("fp32_contents", np.dtype("float32")),
    "FP64": ("fp64_contents", np.dtype("float64")),
    "BYTES": ("bytes_contents", np.dtype(object)),
}
# Parameters of a request, with what they may hold. The last asks Triton for an empty response at
# the end of a stream of responses; each request has one response here, which is the last.
_PARAMETERS = {
    "priority": ("int64_param", "uint64_param"),
    "timeout": ("int64_param", "uint64_param"),
    "triton_enable_empty_final_response": ("bool_param",),
}
_NO_SHARED_MEMORY = "this server has no shared memory; send the tensor in the message"
_SEQUENCE = ("sequence_id", "sequence_start", "sequence_end")
_REASONS = {
    "classification": "this server does not classify; take the largest values of the output",
    "shared_memory_region": _NO_SHARED_MEMORY,
    "shared_memory_byte_size": _NO_SHARED_MEMORY,
    "shared_memory_offset": _NO_SHARED_MEMORY,
    **dict.fromkeys(
        _SEQUENCE,
        "models of this server keep no state between requests; leave the sequence out",
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class InferCall:
    """An inference request, decoded.

    Attributes:
        model: Name of the model.
        version: Version or label; None for the latest.
        id: The request's id, repeated by the response.
        inputs: Arrays by name.
        outputs: Names of the outputs to return, in this order; empty for all.
        priority: 0 is served first.
        timeout_s: The `timeout` parameter in seconds; None for no limit.
    """

    model: str
    version: str | None
    id: str
    inputs: dict[str, np.ndarray]
    outputs: tuple[str, ...]
    priority: int
    timeout_s: float | None


def read_limits(message: Any) -> tuple[int, float | None]:
    """Returns the priority and the timeout in seconds of a `ModelInferRequest`; None for none.

    Raises RequestError.
    """
    parameters = _parameters(message.parameters) if message.parameters else {}
    timeout_us = parameters.get("timeout", 0)
    # 0 is Triton's value for no limit.
    return parameters.get("priority", 0), timeout_us / 1e6 if timeout_us else None


def read_request(message: Any) -> InferCall:
    """Returns a `ModelInferRequest` decoded. Raises RequestError."""
    priority, timeout_s = read_limits(message)
    return InferCall(
        model=message.model_name,
        version=message.model_version or None,
        id=message.id,
        inputs=_inputs(message),
        outputs=_requested(message.outputs) if message.outputs else (),
        priority=priority,
        timeout_s=timeout_s,
    )


def check_number(received: int, inputs: Collection[str]) -> None:
    """Raises RequestError for more inputs than the model has: decoding takes time for each."""
    if received > len(inputs):
        raise RequestError(
            f"a request must have the inputs {', '.join(inputs)}, got {received} inputs; send "
            "each once, and no other"
        )


def check_outputs(requested: Iterable[str], outputs: Collection[str]) -> None:
    """Raises RequestError if a requested output is none of the model's."""
    for name in requested:
        if name not in outputs:
            raise RequestError(
                f"requested outputs must be among {', '.join(sorted(outputs))}, got "
                f"{name[:80]!r}; leave `outputs` empty to receive all"
            )


def write_response(call: InferCall, answer: Answer) -> Any:
    """Returns the `ModelInferResponse` of an answer.

    Args:
        call: The request.
        answer: Its answer.

    Returns:
        The message, with the requested outputs in their order.

    Raises:
        RequestError: A requested output is missing.
        ExecutionError: An output cannot be encoded.
    """
    check_outputs(call.outputs, answer.outputs)
    response = MESSAGES["ModelInferResponse"](
        model_name=answer.model, model_version=answer.version, id=call.id
    )
    for name in call.outputs or answer.outputs:
        array = answer.outputs[name]
        response.outputs.add(name=name, datatype=oip_name(array.dtype), shape=array.shape)
        response.raw_output_contents.append(to_raw(array, tensor=name))
    return response


def _inputs(message: Any) -> dict[str, np.ndarray]:
    tensors, contents = message.inputs, message.raw_input_contents
    if contents and len(contents) != len(tensors):
        raise RequestError(
            f"raw_input_contents must have one element for each input, {len(tensors)}, got "
            f"{len(contents)}; send all inputs raw, in the order of `inputs`"
        )
    arrays, converted = {}, 0
    for i, tensor in enumerate(tensors):
        name = tensor.name
        if tensor.parameters:
            _check_parameters(tensor, len(contents[i]) if contents else None)
        if not contents or tensor.datatype == OIP_BYTES:
            converted += count(tensor.shape, tensor=name)
            check_converted(converted)
        if not contents:
            arrays[name] = _typed(tensor)
        elif tensor.HasField("contents"):
            raise RequestError(
                f"an input must be raw or typed, got `contents` of {name[:80]!r} beside "
                "raw_input_contents; send all inputs in one of both"
            )
        else:
            arrays[name] = from_raw(tensor.datatype, tuple(tensor.shape), contents[i], tensor=name)
    if len(arrays) < len(tensors):
        names = [tensor.name for tensor in tensors]
        twice = next(name for name in names if names.count(name) > 1)
        raise RequestError(
            f"names of inputs must differ, got {twice[:80]!r} twice; send each input once"
        )
    return arrays


def _check_parameters(tensor: Any, size: int | None) -> None:
    """Refuses parameters of an input, but for those that repeat what the message says.

    Args:
        tensor: The input.
        size: Bytes of its raw contents; None if it is typed.
    """
    owner, known = f"input {tensor.name[:80]!r}", ("binary_data_size", "content_type")
    for name, parameter in sorted(tensor.parameters.items(), key=operator.itemgetter(0)):
        if name not in known:
            raise _unknown(name, owner, ", ".join(known))
        kind = parameter.WhichOneof("parameter_choice")
        value = getattr(parameter, kind) if kind else None
        if name == "content_type":
            check_content_type(value, owner, tensor.datatype)
        elif value not in (None, size):  # KServe's client sends it
            raise RequestError(
                f"binary_data_size of {owner} must be that of its raw contents, {size}, got "
                f"{value!r}; leave it out"
            )


def _typed(tensor: Any) -> np.ndarray:
    """Returns the array of an input's `contents`."""
    name, datatype, shape = tensor.name, tensor.datatype, tuple(tensor.shape)
    dtype = dtype_of(datatype, tensor=name)
    elements = count(shape, tensor=name)
    if datatype not in _TYPED:
        raise RequestError(
            f"tensor {name!r} of {datatype} must be raw, got no raw_input_contents; send its "
            "values in C order, little-endian, in raw_input_contents"
        )
    field, wide = _TYPED[datatype]
    received = {descriptor.name: len(values) for descriptor, values in tensor.contents.ListFields()}
    # An empty tensor has no field at all.
    if received != ({field: elements} if elements else {}):
        raise RequestError(
            f"tensor {name!r} of {datatype} and shape {list(shape)} must have {elements} values "
            f"in contents.{field}, got {received or 'none'}; send its values in C order"
        )
    values = np.fromiter(getattr(tensor.contents, field), wide, elements)
    array = values.astype(dtype, copy=False)
    if dtype != wide and (array != values).any():
        bounds = np.iinfo(dtype)
        raise RequestError(
            f"values of tensor {name!r} of {datatype} must be from {bounds.min} to {bounds.max}, "
            f"got {values[array != values][0]}; send them in range"
        )
    return array.reshape(shape)


def _requested(outputs: Any) -> tuple[str, ...]:
    for output in outputs:
        if output.parameters:
            _refuse_parameters(output.parameters, f"output {output.name[:80]!r}")
    names = tuple(output.name for output in outputs)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise RequestError(
            f"requested outputs must differ, got {twice[:80]!r} twice; name each output once"
        )
    return names


def _parameters(parameters: Mapping[str, Any]) -> dict[str, int]:
    """Returns the request's parameters by name."""
    values = {}
    for name, parameter in sorted(parameters.items(), key=operator.itemgetter(0)):
        kind = parameter.WhichOneof("parameter_choice")
        value = getattr(parameter, kind) if kind else None
        if name in _SEQUENCE and not value:
            continue  # no sequence
        if name == "content_type":
            check_content_type(value, "the request")
            continue
        kinds = _PARAMETERS.get(name)
        if kinds is None:
            raise _unknown(name, "the request", ", ".join((*_PARAMETERS, "content_type")))
        if kind not in kinds or value < 0:  # type: ignore[operator]
            raise RequestError(
                f"parameter {name!r} must be from 0 in {' or '.join(kinds)}, got {kind}={value!r}; "
                "priority 0 is served first, timeout is in microseconds"
            )
        values[name] = value
    return values


def _refuse_parameters(parameters: Mapping[str, Any], owner: str) -> None:
    raise _unknown(min(parameters), owner, "none")


def _unknown(name: str, owner: str, known: str) -> RequestError:
    reason = _REASONS.get(name, "leave it out")
    return RequestError(f"parameters of {owner} must be among {known}, got {name[:80]!r}; {reason}")
