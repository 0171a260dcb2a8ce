# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""The table of messages against the descriptors that Triton's client was generated from."""

import pytest

pytest.importorskip("tritonclient.grpc", reason="tritonclient is not installed")
from tritonclient.grpc import model_config_pb2, service_pb2

from dovetail_serve.rpc.service import _UNSERVED
from dovetail_serve.rpc.wire import DATA_TYPES, MESSAGES, SERVICE

pytestmark = pytest.mark.triton

# Fields that this server neither reads nor writes.
LEFT_OUT = {
    "ModelStatistics": {"memory_usage", "response_stats"},
    "InferStatistics": {"cache_hit", "cache_miss"},
    "InferBatchStatistics": {"compute_input", "compute_output"},
}
PARTIAL = {"ModelConfig", "ModelInput", "ModelOutput"}


def theirs(path):
    first, *rest = path.split(".")
    file = (
        service_pb2 if first in service_pb2.DESCRIPTOR.message_types_by_name else model_config_pb2
    )
    message = file.DESCRIPTOR.message_types_by_name[first]
    for name in rest:
        message = message.nested_types_by_name[name]
    return message


def signature(field):
    kind = field.message_type or field.enum_type
    entry = {}
    if kind and field.message_type and field.message_type.GetOptions().map_entry:
        entry = {f.name: signature(f) for f in field.message_type.fields}
    return (
        field.number,
        field.type,
        field.is_repeated,
        kind and kind.full_name,
        field.containing_oneof and field.containing_oneof.name,
        entry,
    )


@pytest.mark.parametrize("path", MESSAGES)
def test_fields_have_the_numbers_and_types_of_triton(path):
    expected = {f.name: signature(f) for f in theirs(path).fields}
    fields = {f.name: signature(f) for f in MESSAGES[path].DESCRIPTOR.fields}
    assert fields == {name: expected[name] for name in fields}
    if path not in PARTIAL:
        assert expected.keys() - fields.keys() == LEFT_OUT.get(path, set())


def test_numbers_of_data_types():
    assert dict(enumerate(DATA_TYPES)) == {
        value.number: name
        for name, value in model_config_pb2.DESCRIPTOR.enum_types_by_name[
            "DataType"
        ].values_by_name.items()
    }


def test_each_method_is_served_or_refused_in_a_sentence():
    service = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    assert service.full_name == SERVICE
    for method in service.methods:
        if method.name not in _UNSERVED:
            response = MESSAGES[method.output_type.name].DESCRIPTOR
            assert response.full_name == method.output_type.full_name
            assert method.input_type.name in MESSAGES
