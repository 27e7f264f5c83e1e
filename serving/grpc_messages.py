"""The messages of ``inference.GRPCInferenceService``, made at import from a table instead of generated code.

The table has the fields of KServe's ``grpc_predict_v2.proto`` and of Triton's ``grpc_service.proto`` that are served
here; whoever speaks either understands the other on the wire. The descriptors lie in a pool of their own, so that the
generated code of tritonclient or KServe may live in the same process.
"""

from __future__ import annotations

import re
from typing import Any

from ..errors import require

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"

TABLE = """
ServerLiveRequest:
ServerLiveResponse: bool live = 1
ServerReadyRequest:
ServerReadyResponse: bool ready = 1
ModelReadyRequest: string name = 1; string version = 2
ModelReadyResponse: bool ready = 1
ServerMetadataRequest:
ServerMetadataResponse: string name = 1; string version = 2; repeated string extensions = 3
ModelMetadataRequest: string name = 1; string version = 2
TensorMetadata: string name = 1; string datatype = 2; repeated int64 shape = 3
ModelMetadataResponse: string name = 1; repeated string versions = 2; string platform = 3;
  repeated TensorMetadata inputs = 4; repeated TensorMetadata outputs = 5
InferParameter: one bool bool_param = 1; one int64 int64_param = 2; one string string_param = 3;
  one double double_param = 4; one uint64 uint64_param = 5
InferTensorContents: repeated bool bool_contents = 1; repeated int32 int_contents = 2;
  repeated int64 int64_contents = 3; repeated uint32 uint_contents = 4; repeated uint64 uint64_contents = 5;
  repeated float fp32_contents = 6; repeated double fp64_contents = 7; repeated bytes bytes_contents = 8
InferTensor: string name = 1; string datatype = 2; repeated int64 shape = 3; map InferParameter parameters = 4;
  InferTensorContents contents = 5
InferRequestedOutputTensor: string name = 1; map InferParameter parameters = 2
ModelInferRequest: string model_name = 1; string model_version = 2; string id = 3; map InferParameter parameters = 4;
  repeated InferTensor inputs = 5; repeated InferRequestedOutputTensor outputs = 6;
  repeated bytes raw_input_contents = 7
ModelInferResponse: string model_name = 1; string model_version = 2; string id = 3; map InferParameter parameters = 4;
  repeated InferTensor outputs = 5; repeated bytes raw_output_contents = 6
RepositoryIndexRequest: string repository_name = 1; bool ready = 2
ModelIndex: string name = 1; string version = 2; string state = 3; string reason = 4
RepositoryIndexResponse: repeated ModelIndex models = 1
ModelRepositoryParameter: one bool bool_param = 1; one int64 int64_param = 2; one string string_param = 3;
  one bytes bytes_param = 4
RepositoryModelLoadRequest: string repository_name = 1; string model_name = 2;
  map ModelRepositoryParameter parameters = 3
RepositoryModelLoadResponse: string model_name = 1; bool isLoaded = 2
RepositoryModelUnloadRequest: string repository_name = 1; string model_name = 2;
  map ModelRepositoryParameter parameters = 3
RepositoryModelUnloadResponse: string model_name = 1; bool isUnloaded = 2
HealthCheckRequest: string service = 1
HealthCheckResponse: int32 status = 1
"""
"""Message: fields. ``one`` marks those of a oneof, ``map`` a map from text; which message nests in which, and whether a
number is an enum, is not seen on the wire. KServe has the name of a model to load where Triton has the repository's."""


_FIELD = re.compile(r"(?:(repeated|one|map) )?(\w+) (\w+) = (\d+)")


def message_classes(table: str = TABLE) -> dict[str, Any]:
    """Message → its class."""
    descriptors = require("google.protobuf.descriptor_pb2", "serve", "serve over gRPC")
    from google.protobuf import descriptor_pool, message_factory

    file = descriptors.FileDescriptorProto(name="hydrant/inference.proto", package=PACKAGE, syntax="proto3")
    for line in table.replace("\n  ", " ").strip().splitlines():
        name, _, fields = line.partition(":")
        message = file.message_type.add(name=name)
        for kind, of, field, number in _FIELD.findall(fields):
            _add(message, kind, of, field, int(number))
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    names = [message.name for message in file.message_type]
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in names}


def _add(message: Any, kind: str, of: str, name: str, number: int) -> None:
    """Add one field to the description of a message."""
    field = message.field.add(name=name, number=number)
    field.label = field.LABEL_REPEATED if kind in ("repeated", "map") else field.LABEL_OPTIONAL
    if kind == "map":
        entry = message.nested_type.add(name="".join(part.title() for part in name.split("_")) + "Entry")
        entry.options.map_entry = True
        _add(entry, "", "string", "key", 1)
        _add(entry, "", of, "value", 2)
        field.type, field.type_name = field.TYPE_MESSAGE, f".{PACKAGE}.{message.name}.{entry.name}"
    elif of[0].isupper():
        field.type, field.type_name = field.TYPE_MESSAGE, f".{PACKAGE}.{of}"
    else:
        field.type = getattr(field, f"TYPE_{of.upper()}")
    if kind == "one":
        if not message.oneof_decl:
            message.oneof_decl.add(name="parameter_choice")
        field.oneof_index = 0
