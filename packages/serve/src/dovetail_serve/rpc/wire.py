# Copyright 2026 The Dovetail Authors
# SPDX-License-Identifier: Apache-2.0
"""Messages of the Open Inference Protocol over gRPC, with Triton's extensions, as a table.

A second table has those of gRPC's health checks.

The classes are built from the table when this module is imported, in a descriptor pool of their
own: a process may also hold a client's generated classes of the same names. Only numbers and types
travel, so a message here may leave out fields unused by this server.

A field is `name=number:type`. `*` repeats it, `{}` makes it a map from strings, and `|name` puts it
into a oneof.
"""

import re
from collections.abc import Iterator
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.json_format import ParseDict

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"

_MESSAGES = {
    "ServerLiveRequest": "",
    "ServerLiveResponse": "live=1:bool",
    "ServerReadyRequest": "",
    "ServerReadyResponse": "ready=1:bool",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "name=1:string version=2:string extensions=3:string*",
    "ModelReadyRequest": "name=1:string version=2:string",
    "ModelReadyResponse": "ready=1:bool",
    "ModelMetadataRequest": "name=1:string version=2:string",
    "ModelMetadataResponse": "name=1:string versions=2:string* platform=3:string "
    "inputs=4:ModelMetadataResponse.TensorMetadata* "
    "outputs=5:ModelMetadataResponse.TensorMetadata*",
    "ModelMetadataResponse.TensorMetadata": "name=1:string datatype=2:string shape=3:int64*",
    "ModelConfigRequest": "name=1:string version=2:string",
    "ModelConfigResponse": "config=1:ModelConfig",
    "ModelConfig": "name=1:string platform=2:string max_batch_size=4:int32 input=5:ModelInput* "
    "output=6:ModelOutput* backend=17:string",
    "ModelInput": "name=1:string data_type=2:DataType dims=4:int64*",
    "ModelOutput": "name=1:string data_type=2:DataType dims=3:int64*",
    "InferParameter": "bool_param=1:bool|parameter_choice int64_param=2:int64|parameter_choice "
    "string_param=3:string|parameter_choice double_param=4:double|parameter_choice "
    "uint64_param=5:uint64|parameter_choice",
    "InferTensorContents": "bool_contents=1:bool* int_contents=2:int32* int64_contents=3:int64* "
    "uint_contents=4:uint32* uint64_contents=5:uint64* fp32_contents=6:float* "
    "fp64_contents=7:double* bytes_contents=8:bytes*",
    "ModelInferRequest": "model_name=1:string model_version=2:string id=3:string "
    "parameters=4:InferParameter{} inputs=5:ModelInferRequest.InferInputTensor* "
    "outputs=6:ModelInferRequest.InferRequestedOutputTensor* raw_input_contents=7:bytes*",
    "ModelInferRequest.InferInputTensor": "name=1:string datatype=2:string shape=3:int64* "
    "parameters=4:InferParameter{} contents=5:InferTensorContents",
    "ModelInferRequest.InferRequestedOutputTensor": "name=1:string parameters=2:InferParameter{}",
    "ModelInferResponse": "model_name=1:string model_version=2:string id=3:string "
    "parameters=4:InferParameter{} outputs=5:ModelInferResponse.InferOutputTensor* "
    "raw_output_contents=6:bytes*",
    "ModelInferResponse.InferOutputTensor": "name=1:string datatype=2:string shape=3:int64* "
    "parameters=4:InferParameter{} contents=5:InferTensorContents",
    "ModelStreamInferResponse": "error_message=1:string infer_response=2:ModelInferResponse",
    "ModelStatisticsRequest": "name=1:string version=2:string",
    "ModelStatisticsResponse": "model_stats=1:ModelStatistics*",
    "ModelStatistics": "name=1:string version=2:string last_inference=3:uint64 "
    "inference_count=4:uint64 execution_count=5:uint64 inference_stats=6:InferStatistics "
    "batch_stats=7:InferBatchStatistics*",
    "InferStatistics": "success=1:StatisticDuration fail=2:StatisticDuration "
    "queue=3:StatisticDuration compute_input=4:StatisticDuration "
    "compute_infer=5:StatisticDuration compute_output=6:StatisticDuration",
    "InferBatchStatistics": "batch_size=1:uint64 compute_infer=3:StatisticDuration",
    "StatisticDuration": "count=1:uint64 ns=2:uint64",
    "ModelRepositoryParameter": "bool_param=1:bool|parameter_choice "
    "int64_param=2:int64|parameter_choice string_param=3:string|parameter_choice "
    "bytes_param=4:bytes|parameter_choice",
    "RepositoryIndexRequest": "repository_name=1:string ready=2:bool",
    "RepositoryIndexResponse": "models=1:RepositoryIndexResponse.ModelIndex*",
    "RepositoryIndexResponse.ModelIndex": "name=1:string version=2:string state=3:string "
    "reason=4:string",
    "RepositoryModelLoadRequest": "repository_name=1:string model_name=2:string "
    "parameters=3:ModelRepositoryParameter{}",
    "RepositoryModelLoadResponse": "",
    "RepositoryModelUnloadRequest": "repository_name=1:string model_name=2:string "
    "parameters=3:ModelRepositoryParameter{}",
    "RepositoryModelUnloadResponse": "",
}
HEALTH_SERVICE = "grpc.health.v1.Health"
_HEALTH_MESSAGES = {
    "HealthCheckRequest": "service=1:string",
    # An enumeration in the original. Its values travel like integers.
    "HealthCheckResponse": "status=1:int32",
}
# Values of the enumeration DataType, in the order of their numbers from 0.
DATA_TYPES = (
    *("TYPE_INVALID", "TYPE_BOOL", "TYPE_UINT8", "TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64"),
    *("TYPE_INT8", "TYPE_INT16", "TYPE_INT32", "TYPE_INT64"),
    *("TYPE_FP16", "TYPE_FP32", "TYPE_FP64", "TYPE_STRING", "TYPE_BF16"),
)
_FIELD = re.compile(r"(\w+)=(\d+):([\w.]+)(\*|\{\})?(?:\|(\w+))?")
_PROTO = descriptor_pb2.FieldDescriptorProto


def _file(package: str, table: dict[str, str]) -> descriptor_pb2.FileDescriptorProto:
    """Returns a table as a file descriptor."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"dovetail_serve/{package}.proto", package=package, syntax="proto3"
    )
    numbered = [
        descriptor_pb2.EnumValueDescriptorProto(name=name, number=number)
        for number, name in enumerate(DATA_TYPES)
    ]
    file.enum_type.add(name="DataType", value=numbered)
    messages: dict[str, Any] = {}
    # An enclosing message comes before those inside of it.
    for path in sorted(table):
        parent, _, name = path.rpartition(".")
        nested = messages[parent].nested_type if parent else file.message_type
        messages[path] = nested.add(name=name)
    for path, fields in table.items():
        for text in fields.split():
            _add_field(messages[path], path, text)
    return file


def _add_field(message: Any, path: str, text: str) -> None:
    match = _FIELD.fullmatch(text)
    assert match, text
    name, number, kind, label, oneof = match.groups()
    field = message.field.add(name=name, number=int(number), label=_PROTO.LABEL_OPTIONAL)
    if label:
        field.label = _PROTO.LABEL_REPEATED
    if label == "{}":
        kind = f"{path}.{_add_entry(message, name, kind)}"
    if oneof:
        if oneof not in (declared.name for declared in message.oneof_decl):
            message.oneof_decl.add(name=oneof)
        field.oneof_index = len(message.oneof_decl) - 1
    _set_type(field, kind)


def _add_entry(message: Any, name: str, kind: str) -> str:
    """Adds the message of a map's entries. Returns its name, which protobuf prescribes."""
    entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
    entry.options.map_entry = True
    key = entry.field.add(name="key", number=1, label=_PROTO.LABEL_OPTIONAL)
    key.type = _PROTO.TYPE_STRING
    value = entry.field.add(name="value", number=2, label=_PROTO.LABEL_OPTIONAL)
    _set_type(value, kind)
    return entry.name


def _set_type(field: Any, kind: str) -> None:
    if kind == "DataType":
        field.type, field.type_name = _PROTO.TYPE_ENUM, f".{PACKAGE}.{kind}"
    elif kind[0].isupper():
        field.type, field.type_name = _PROTO.TYPE_MESSAGE, f".{PACKAGE}.{kind}"
    else:
        field.type = _PROTO.Type.Value(f"TYPE_{kind.upper()}")


def _classes(package: str, table: dict[str, str]) -> Iterator[tuple[str, Any]]:
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file(package, table))
    for path in table:
        descriptor = pool.FindMessageTypeByName(f"{package}.{path}")
        yield path, message_factory.GetMessageClass(descriptor)


# Message classes by name within the package; those of nested messages by dotted name.
MESSAGES: dict[str, Any] = dict(_classes(PACKAGE, _MESSAGES))
HEALTH_MESSAGES: dict[str, Any] = dict(
    _classes(HEALTH_SERVICE.rpartition(".")[0], _HEALTH_MESSAGES)
)


def message(name: str, document: dict[str, Any]) -> Any:
    """Returns a message with the values of a document.

    What the message cannot hold is left out: our additions, and our datatypes that Triton's
    configuration lacks, such as FP8. These are TYPE_INVALID there, and the metadata names them.
    """
    return ParseDict(document, MESSAGES[name](), ignore_unknown_fields=True)
