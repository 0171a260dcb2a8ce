# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Documents of a model with a batch axis, without one, and with texts."""

from dovetail_serve.http.documents import model_config, model_metadata, repository_index
from dovetail_serve.serving.server import Metadata, VersionState
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
