# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Documents of a model with a batch axis, without one, and with texts; its statistics."""

from dovetail_serve.serving.documents import (
    inference_statistics,
    model_config,
    model_metadata,
    repository_index,
)
from dovetail_serve.serving.server import Metadata, VersionState
from dovetail_serve.serving.statistics import Statistics
from dovetail_serve.types import Tensor


def metadata(inputs, outputs, batch_sizes):
    return Metadata(
        name="m",
        version="7",
        versions=("5", "7"),
        platform="jax_stablehlo",
        inputs=inputs,
        outputs=outputs,
        batch_sizes=batch_sizes,
        digest="sha256:ab",
        provenance={"step": "9"},
    )


def test_names_of_datatypes_and_sizes():
    inputs = {"text": Tensor(("batch",), "bytes"), "x": Tensor(("batch", 2, 3), "bfloat16")}
    described = metadata(inputs, {"y": Tensor(("batch", 4), "int4")}, (1, 16))
    document = model_metadata(described)
    assert document["inputs"] == [
        {"name": "text", "datatype": "BYTES", "shape": [-1]},
        {"name": "x", "datatype": "BF16", "shape": [-1, 2, 3]},
    ]
    assert document["outputs"] == [{"name": "y", "datatype": "INT4", "shape": [-1, 4]}]
    assert (document["versions"], document["provenance"]) == (["5", "7"], {"step": "9"})
    config = model_config(described)
    assert config["max_batch_size"] == 16
    assert [entry["data_type"] for entry in config["input"]] == ["TYPE_STRING", "TYPE_BF16"]
    assert [entry["dims"] for entry in config["input"]] == [[], [2, 3]]


def test_a_model_without_a_batch_axis_keeps_all_sizes():
    config = model_config(metadata({"x": Tensor((2, 3), "uint8")}, {"y": Tensor((), "bool")}, ()))
    assert config["max_batch_size"] == 0
    assert config["input"] == [{"name": "x", "data_type": "TYPE_UINT8", "dims": [2, 3]}]
    assert config["output"] == [{"name": "y", "data_type": "TYPE_BOOL", "dims": []}]


def test_the_index_may_be_of_ready_versions():
    states = [
        VersionState(name="m", version="1", state="UNAVAILABLE", reason="damaged"),
        VersionState(name="m", version="2", state="READY", digest="sha256:ab"),
    ]
    assert [s["reason"] for s in repository_index(states, ready=False)] == ["damaged", ""]
    assert [s["version"] for s in repository_index(states, ready=True)] == ["2"]


def test_statistics_are_in_nanoseconds_under_the_names_of_triton():
    counts = Statistics(
        successes=7,
        failures={"QueueFull": 2, "cancelled": 1},
        rows=19,
        queue_s=1.5,
        pad_s=0.25,
        compute_s=2.0,
        split_s=0.125,
        failed_s=0.5,
        batches={3: 3, 10: 1},
        batches_s={3: 1.5, 10: 0.5},
        last_inference=1234.5678,
    )
    document = inference_statistics("mlp", "3", counts)
    assert (document["name"], document["version"]) == ("mlp", "3")
    assert (document["inference_count"], document["last_inference"]) == (19, 1_234_568)
    # Three batches of 3 rows, one of 10.
    assert document["execution_count"] == 4
    durations = {batch["batch_size"]: batch["compute_infer"] for batch in document["batch_stats"]}
    assert durations == {
        3: {"count": 3, "ns": 1_500_000_000},
        10: {"count": 1, "ns": 500_000_000},
    }
    assert document["inference_stats"] == {
        "success": {"count": 7, "ns": 3_875_000_000},
        "fail": {"count": 3, "ns": 500_000_000},
        "queue": {"count": 7, "ns": 1_500_000_000},
        "compute_input": {"count": 7, "ns": 250_000_000},
        "compute_infer": {"count": 7, "ns": 2_000_000_000},
        "compute_output": {"count": 7, "ns": 125_000_000},
        "cache_hit": {"count": 0, "ns": 0},
        "cache_miss": {"count": 0, "ns": 0},
    }
