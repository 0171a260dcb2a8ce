# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Parameters of a request in JSON, of its inputs and of its requested outputs.

One that is null counts as absent. Unknown ones are refused, because a misspelled one would change
the answer silently.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from dovetail_serve.errors import RequestError
from dovetail_serve.serving.datatypes import check_content_type

# Triton's parameters are at most unsigned integers of 64 bits.
_MAX_INTEGER = (1 << 64) - 1
_PARAMETERS = frozenset({"priority", "timeout", "binary_data_output", "explain", "content_type"})
_INPUT_PARAMETERS = frozenset({"binary_data_size", "content_type"})
_SEQUENCES = ("sequence_id", "sequence_start", "sequence_end")
# Inputs and outputs alike; a client with shared memory on its mind deserves the reason.
_SHARED = ("shared_memory_region", "shared_memory_offset", "shared_memory_byte_size")


class Options(NamedTuple):
    """The parameters of an inference request.

    Attributes:
        binary: Binary data for all outputs without a choice of their own.
        priority: 0 is served first; None for the default, 0.
        deadline_s: Seconds from now; None for the server's default.
        explain: Return the time of each stage.
    """

    binary: bool = False
    priority: int | None = None
    deadline_s: float | None = None
    explain: bool = False


def read_options(document: dict[str, Any]) -> Options:
    """Returns the parameters of a request. Raises RequestError."""
    parameters = _parameters(document, "the request")
    check_content_type(parameters.get("content_type"), "the request")
    if not parameters.keys() <= _PARAMETERS:
        _refuse_parameters(parameters)
    return Options(
        binary=_boolean(parameters, "binary_data_output"),
        priority=_integer(parameters, "priority"),
        deadline_s=_deadline_s(parameters),
        explain=_boolean(parameters, "explain"),
    )


def binary_size(entry: dict[str, Any], name: str, datatype: str) -> int | None:
    """Returns the bytes of an input's binary data, or None for JSON data. Raises RequestError.

    Args:
        entry: The input.
        name: Its name.
        datatype: Its datatype.
    """
    if entry.get("parameters") is None:
        return None
    owner = f"input {name!r}"
    parameters = _parameters(entry, owner)
    _refuse_shared(parameters)
    check_content_type(parameters.get("content_type"), owner, datatype)
    if not parameters.keys() <= _INPUT_PARAMETERS:
        raise unknown(f"parameters of {owner}", parameters, _INPUT_PARAMETERS)
    size = _integer(parameters, "binary_data_size")
    if size is not None and entry.get("data") is not None:
        raise wrong(owner, "data or binary_data_size", "both", "one of them")
    return size


def binary_output(entry: dict[str, Any], name: str, *, default: bool) -> bool:
    """Returns whether a requested output is binary data. Raises RequestError.

    Args:
        entry: The requested output.
        name: Its name.
        default: The request's choice for all outputs.
    """
    parameters = _parameters(entry, f"output {name!r}")
    _refuse_shared(parameters)
    if not parameters.keys() <= {"binary_data"}:
        raise unknown(f"parameters of output {name!r}", parameters, {"binary_data"})
    return _boolean(parameters, "binary_data", default=default)


def _parameters(entry: dict[str, Any], owner: str) -> dict[str, Any]:
    parameters = entry.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise wrong(f"parameters of {owner}", "an object", parameters, '"parameters": {}')
    return {name: value for name, value in parameters.items() if value is not None}


def _boolean(parameters: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise wrong(f"parameter {name!r}", "true or false", value, f'"{name}": true')
    return value


def _integer(parameters: Mapping[str, Any], name: str) -> int | None:
    value = parameters.get(name)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= _MAX_INTEGER:
        expected = f"an integer from 0 to {_MAX_INTEGER}"
        raise wrong(f"parameter {name!r}", expected, value, f'"{name}": 1')
    return value


def _deadline_s(parameters: Mapping[str, Any]) -> float | None:
    """Returns the timeout in microseconds; 0 means none, as in Triton."""
    timeout_us = _integer(parameters, "timeout")
    return timeout_us * 1e-6 if timeout_us else None


def _refuse_parameters(parameters: Mapping[str, Any]) -> None:
    for name in _SEQUENCES:
        if parameters.get(name):
            raise RequestError(
                "models must be stateless: a bundle keeps nothing between requests, got "
                f"{name}={str(parameters[name])[:40]}; leave it out and send the state as an input"
            )
    _refuse_shared(parameters)
    if not parameters.keys() <= _PARAMETERS | set(_SEQUENCES):
        raise unknown("parameters of the request", parameters, _PARAMETERS)


def _refuse_shared(parameters: Mapping[str, Any]) -> None:
    for name in _SHARED:
        if name in parameters:
            raise RequestError(
                f"tensors must be in the body: there is no shared memory, got {name}="
                f"{str(parameters[name])[:40]!r}; send binary data"
            )


def unknown(
    owner: str, members: Mapping[str, Any], known: frozenset[str] | set[str]
) -> RequestError:
    """Returns the error for members that are not known.

    Args:
        owner: What has the members.
        members: The members that came.
        known: Names of those that it may have.
    """
    names = ", ".join(repr(name[:40]) for name in sorted(members.keys() - known)[:4])
    return RequestError(
        f"{owner} must have no members but {', '.join(sorted(known))}, got {names or 'none'}; "
        "correct the spelling, or leave it out"
    )


def wrong(what: str, expected: str, value: object, example: str) -> RequestError:
    """Returns the error for a value that does not fit.

    Args:
        what: The member.
        expected: What it must be.
        value: What came; None for nothing.
        example: What to write.
    """
    received = "nothing" if value is None else f"{str(value)[:60]!r}"
    return RequestError(f"{what} must be {expected}, got {received}; write {example}")
