# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Metadata, configuration, statistics and index as messages."""

from dovetail_serve.rpc import describe
from dovetail_serve.rpc.wire import DATA_TYPES
from dovetail_serve.serving.served import VersionState
from dovetail_serve.serving.server import Metadata
from dovetail_serve.serving.statistics import Statistics
from dovetail_serve.types import Tensor

DESCRIBED = Metadata(
    name="mlp",
    version="3",
    versions=("2", "3"),
    platform="jax_stablehlo",
    inputs={"x": Tensor(("batch", 5, 2), "bfloat16"), "t": Tensor(("batch",), "bytes")},
    outputs={"y": Tensor(("batch", 3), "float8_e4m3fn")},
    batch_sizes=(1, 8),
    digest="sha256:0",
    provenance={},
)


def test_metadata_has_minus_one_for_the_batch_axis():
    message = describe.metadata(DESCRIBED)
    assert (message.name, list(message.versions)) == ("mlp", ["2", "3"])
    assert message.platform == "jax_stablehlo"
    assert [(t.name, t.datatype, list(t.shape)) for t in message.inputs] == [
        ("x", "BF16", [-1, 5, 2]),
        ("t", "BYTES", [-1]),
    ]
    assert [(t.name, t.datatype, list(t.shape)) for t in message.outputs] == [
        ("y", "FP8_E4M3FN", [-1, 3])
    ]


def test_config_leaves_the_batch_axis_out():
    config = describe.config(DESCRIBED).config
    assert (config.name, config.platform, config.max_batch_size) == ("mlp", "jax_stablehlo", 8)
    assert [(t.name, DATA_TYPES[t.data_type], list(t.dims)) for t in config.input] == [
        ("x", "TYPE_BF16", [5, 2]),
        ("t", "TYPE_STRING", []),
    ]
    # Triton has no number for FP8.
    assert DATA_TYPES[config.output[0].data_type] == "TYPE_INVALID"


def test_config_without_a_batch_axis():
    single = Metadata(
        **{**vars(DESCRIBED), "inputs": {"x": Tensor((2, 3), "int64")}, "batch_sizes": ()}
    )
    config = describe.config(single).config
    assert config.max_batch_size == 0
    assert list(config.input[0].dims) == [2, 3]
    assert DATA_TYPES[config.input[0].data_type] == "TYPE_INT64"


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
    message = describe.statistics("mlp", "3", counts)
    assert (message.name, message.version) == ("mlp", "3")
    assert (message.inference_count, message.last_inference) == (19, 1_234_568)
    # Three batches of 3 rows, one of 10.
    assert message.execution_count == 4
    durations = {b.batch_size: b.compute_infer for b in message.batch_stats}
    assert {size: (d.count, d.ns) for size, d in durations.items()} == {
        3: (3, 1_500_000_000),
        10: (1, 500_000_000),
    }
    stats = message.inference_stats
    stages = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
    assert {name: (getattr(stats, name).count, getattr(stats, name).ns) for name in stages} == {
        "success": (7, 3_875_000_000),
        "fail": (3, 500_000_000),
        "queue": (7, 1_500_000_000),
        "compute_input": (7, 250_000_000),
        "compute_infer": (7, 2_000_000_000),
        "compute_output": (7, 125_000_000),
    }


def test_index_of_all_versions_or_of_those_that_are_ready():
    states = [
        VersionState(name="mlp", version="1", state="READY"),
        VersionState(name="mlp", version="2", state="UNAVAILABLE", reason="damaged"),
    ]
    rows = [
        (m.name, m.version, m.state, m.reason) for m in describe.index(states, ready=False).models
    ]
    assert rows == [("mlp", "1", "READY", ""), ("mlp", "2", "UNAVAILABLE", "damaged")]
    assert [m.version for m in describe.index(states, ready=True).models] == ["1"]
