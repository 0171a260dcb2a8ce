# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Documents about the server and its models, as the Open Inference Protocol and Triton name them.

Triton's extensions: statistics, model configuration, model repository. What we add stands under
names of its own: `digest` and `provenance`. HTTP sends documents as JSON. gRPC copies their values
into messages, which have no fields for our additions.
"""

import importlib.metadata
from collections.abc import Iterable, Mapping
from typing import Any

from dovetail_serve.errors import RequestError
from dovetail_serve.serving.datatypes import oip_name
from dovetail_serve.serving.server import Metadata, Server, VersionState
from dovetail_serve.serving.statistics import Statistics
from dovetail_serve.types import Tensor

NAME = "dovetail-serve"
EXTENSIONS = ("binary_tensor_data", "model_configuration", "model_repository", "statistics")


def server_metadata() -> dict[str, Any]:
    """Name, version and extensions of the server."""
    version = importlib.metadata.version(NAME)
    return {"name": NAME, "version": version, "extensions": list(EXTENSIONS)}


def model_metadata(metadata: Metadata) -> dict[str, Any]:
    """Inputs and outputs of a model; the batch axis has size -1."""
    return {
        "name": metadata.name,
        "versions": list(metadata.versions),
        "platform": metadata.platform,
        "inputs": _described(metadata.inputs),
        "outputs": _described(metadata.outputs),
        "digest": metadata.digest,
        "provenance": dict(metadata.provenance),
    }


def model_config(metadata: Metadata) -> dict[str, Any]:
    """Triton's configuration. `max_batch_size` above 0 means that `dims` lack the batch axis.

    Larger requests are divided.
    """
    rows = max(metadata.batch_sizes, default=0)
    return {
        "name": metadata.name,
        "platform": metadata.platform,
        "backend": "jax",
        "max_batch_size": rows,
        "input": _configured(metadata.inputs),
        "output": _configured(metadata.outputs),
    }


def repository_index(states: Iterable[VersionState], *, ready: bool) -> list[dict[str, Any]]:
    """All versions, or ready ones alone."""
    return [version_state(state) for state in states if state.state == "READY" or not ready]


def version_state(state: VersionState) -> dict[str, Any]:
    """An entry of the index."""
    return {
        "name": state.name,
        "version": state.version,
        "state": state.state,
        "reason": state.reason,
        "digest": state.digest,
        "provenance": dict(state.provenance),
    }


def version_statistics(server: Server, state: VersionState) -> Statistics:
    """Returns the counts of a version in the index; zeros before its first load."""
    try:
        return server.statistics(state.name, state.version)
    except RequestError:
        return Statistics()


def model_statistics(server: Server, name: str = "", version: str | None = None) -> dict[str, Any]:
    """Triton's statistics of all versions in the index, of those of a model, or of one version.

    Args:
        server: The server.
        name: Name of the model. Empty for all.
        version: Number or label of the version. None for all.

    Raises:
        RequestError: There is no such model or version.
    """
    states = server.index()
    if name or version:
        states = [state for state in states if state.name == name]
        if version or not states:
            # A label stands for the version that it names; an unknown model is an error.
            number = server.metadata(name, version).version
            states = [state for state in states if state.version == number]
    return {
        "model_stats": [
            inference_statistics(state.name, state.version, version_statistics(server, state))
            for state in states
        ]
    }


def inference_statistics(name: str, version: str, statistics: Statistics) -> dict[str, Any]:
    """Returns Triton's statistics of one version; times in nanoseconds, the last in milliseconds.

    Triton's `compute_input` is the joining and padding of a batch, its `compute_output` the
    division of the results. `inference_count` counts rows, `execution_count` batches.

    Args:
        name: Name of the model.
        version: Name of the version.
        statistics: Its counts.
    """
    successes, batches = statistics.successes, statistics.batches
    failures = sum(statistics.failures.values())
    return {
        "name": name,
        "version": version,
        "last_inference": round(statistics.last_inference * 1e3),
        "inference_count": statistics.rows,
        "execution_count": sum(batches.values()),
        "inference_stats": {
            "success": _duration(successes, statistics.total_s),
            "fail": _duration(failures, statistics.failed_s),
            "queue": _duration(successes, statistics.queue_s),
            "compute_input": _duration(successes, statistics.pad_s),
            "compute_infer": _duration(successes, statistics.compute_s),
            "compute_output": _duration(successes, statistics.split_s),
            # No cache of responses.
            "cache_hit": _duration(0, 0.0),
            "cache_miss": _duration(0, 0.0),
        },
        # Of the stages, only the program is timed by batch size.
        "batch_stats": [
            {
                "batch_size": size,
                "compute_input": _duration(number, 0.0),
                "compute_infer": _duration(number, statistics.batches_s[size]),
                "compute_output": _duration(number, 0.0),
            }
            for size, number in batches.items()
        ],
    }


def _sizes(tensor: Tensor) -> list[int]:
    return [size if isinstance(size, int) else -1 for size in tensor.shape]


def _described(tensors: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    return [
        {"name": name, "datatype": oip_name(tensor.dtype), "shape": _sizes(tensor)}
        for name, tensor in tensors.items()
    ]


def _configured(tensors: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "data_type": _configured_type(tensor),
            "dims": _sizes(tensor)[1:] if tensor.batched else _sizes(tensor),
        }
        for name, tensor in tensors.items()
    ]


def _configured_type(tensor: Tensor) -> str:
    """Triton calls BYTES a string here, and nowhere else."""
    name = oip_name(tensor.dtype)
    return f"TYPE_{'STRING' if name == 'BYTES' else name}"


def _duration(count: int, seconds: float) -> dict[str, int]:
    return {"count": count, "ns": round(seconds * 1e9)}
