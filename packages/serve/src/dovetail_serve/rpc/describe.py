# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Metadata, configuration, statistics and index of models as messages of the protocol."""

from collections.abc import Iterable
from typing import Any

from dovetail_serve.rpc.wire import DATA_TYPES, MESSAGES
from dovetail_serve.serving.datatypes import OIP_BYTES, oip_name
from dovetail_serve.serving.served import VersionState
from dovetail_serve.serving.server import Metadata
from dovetail_serve.serving.statistics import Statistics
from dovetail_serve.types import BATCH, Tensor

# Size of the batch axis, as the protocol writes any size.
_ANY = -1
_TYPE_INVALID = DATA_TYPES.index("TYPE_INVALID")


def metadata(described: Metadata) -> Any:
    """Returns a `ModelMetadataResponse`."""
    return MESSAGES["ModelMetadataResponse"](
        name=described.name,
        versions=described.versions,
        platform=described.platform,
        inputs=[_tensor(name, tensor) for name, tensor in described.inputs.items()],
        outputs=[_tensor(name, tensor) for name, tensor in described.outputs.items()],
    )


def config(described: Metadata) -> Any:
    """Returns a `ModelConfigResponse`, as clients of Triton ask for it.

    `max_batch_size` is the largest batch of the bundle, 0 without a batch axis. Larger requests
    are divided. Dimensions leave the batch axis out. Triton has no type for the extensions of this
    server, such as FP8: they are TYPE_INVALID, and the metadata names them.
    """
    return MESSAGES["ModelConfigResponse"](
        config={
            "name": described.name,
            "platform": described.platform,
            "backend": "jax",
            "max_batch_size": max(described.batch_sizes, default=0),
            "input": [_typed(name, tensor) for name, tensor in described.inputs.items()],
            "output": [_typed(name, tensor) for name, tensor in described.outputs.items()],
        }
    )


def statistics(name: str, version: str, counts: Statistics) -> Any:
    """Returns a `ModelStatistics`.

    Stages have Triton's names: padding is `compute_input`, division is `compute_output`. By
    batch size, in `batch_stats`, only the time of the program is known.

    Args:
        name: Name of the model.
        version: Name of the version.
        counts: Its counts.
    """
    batches = counts.batches

    def stage(seconds: float) -> dict[str, int]:
        return {"count": counts.successes, "ns": round(seconds * 1e9)}

    return MESSAGES["ModelStatistics"](
        name=name,
        version=version,
        last_inference=round(counts.last_inference * 1e3),
        inference_count=counts.rows,
        execution_count=sum(batches.values()),
        inference_stats={
            "success": stage(counts.total_s),
            "fail": {"count": sum(counts.failures.values()), "ns": round(counts.failed_s * 1e9)},
            "queue": stage(counts.queue_s),
            "compute_input": stage(counts.pad_s),
            "compute_infer": stage(counts.compute_s),
            "compute_output": stage(counts.split_s),
        },
        batch_stats=[
            {
                "batch_size": rows,
                "compute_infer": {"count": times, "ns": round(counts.batches_s[rows] * 1e9)},
            }
            for rows, times in batches.items()
        ],
    )


def index(states: Iterable[VersionState], *, ready: bool) -> Any:
    """Returns a `RepositoryIndexResponse`; with `ready`, of ready versions alone."""
    return MESSAGES["RepositoryIndexResponse"](
        models=[
            {"name": s.name, "version": s.version, "state": s.state, "reason": s.reason}
            for s in states
            if s.state == "READY" or not ready
        ]
    )


def _tensor(name: str, tensor: Tensor) -> dict[str, Any]:
    return {
        "name": name,
        "datatype": oip_name(tensor.dtype),
        "shape": [_ANY if size == BATCH else size for size in tensor.shape],
    }


def _typed(name: str, tensor: Tensor) -> dict[str, Any]:
    datatype = oip_name(tensor.dtype)
    label = "TYPE_STRING" if datatype == OIP_BYTES else f"TYPE_{datatype}"
    number = DATA_TYPES.index(label) if label in DATA_TYPES else _TYPE_INVALID
    return {"name": name, "data_type": number, "dims": [s for s in tensor.shape if s != BATCH]}
