"""gRPC: ``inference.GRPCInferenceService`` of the Open Inference Protocol v2, and the health service for probes.

Message classes come from a table instead of generated code: the supported fields of KServe's ``grpc_predict_v2.proto``
and of Triton's ``grpc_service.proto``. A separate descriptor pool avoids conflicts with generated code of tritonclient
or KServe in the same process.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..errors import HydrantError, InputError, cut, listing, require
from . import oip
from .datatypes import DTYPES, Tensor, check_values, checked_head, from_bytes, from_values, object_array, to_bytes
from .http_refusals import ServeError, convert_fields, refusal
from .middleware import check_token
from .observers import Served
from .predict_routes import observed
from .service import Service

log = logging.getLogger(__name__)

PURPOSE = "serve over gRPC"


CODES = {
    401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 408: "DEADLINE_EXCEEDED",
    409: "FAILED_PRECONDITION", 413: "RESOURCE_EXHAUSTED", 499: "CANCELLED", 500: "INTERNAL", 503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}  # fmt: skip
"""HTTP status → gRPC code; all others are ``INVALID_ARGUMENT``."""

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
"""Message: fields. ``one`` marks a field of a oneof, ``map`` a map from text. KServe's field 1 of (un)load requests is
the model's name, Triton's is the repository's."""

CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
"""Datatype → field of ``InferTensorContents``; other datatypes need raw contents."""


def message_classes() -> dict[str, Any]:
    """The class of each message."""
    descriptors = require("google.protobuf.descriptor_pb2", "serve", PURPOSE)
    from google.protobuf import descriptor_pool, message_factory

    file = descriptors.FileDescriptorProto(name="hydrant/inference.proto", package=PACKAGE, syntax="proto3")
    for line in TABLE.replace("\n  ", " ").strip().splitlines():
        name, _, fields = line.partition(":")
        message = file.message_type.add(name=name)
        for kind, of, called, number in re.findall(r"(?:(repeated|one|map) )?(\w+) (\w+) = (\d+)", fields):
            _add_field(message, kind, of, called, int(number))
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    names = [message.name for message in file.message_type]
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in names}


def _add_field(message: Any, kind: str, of: str, name: str, number: int) -> None:
    field = message.field.add(name=name, number=number)
    field.label = field.LABEL_REPEATED if kind in ("repeated", "map") else field.LABEL_OPTIONAL
    if kind == "map":
        entry = message.nested_type.add(name="".join(part.title() for part in name.split("_")) + "Entry")
        entry.options.map_entry = True
        _add_field(entry, "", "string", "key", 1)
        _add_field(entry, "", of, "value", 2)
        field.type, field.type_name = field.TYPE_MESSAGE, f".{PACKAGE}.{message.name}.{entry.name}"
    elif of[0].isupper():
        field.type, field.type_name = field.TYPE_MESSAGE, f".{PACKAGE}.{of}"
    else:
        field.type = getattr(field, f"TYPE_{of.upper()}")
    if kind == "one":
        if not message.oneof_decl:
            message.oneof_decl.add(name="parameter_choice")
        field.oneof_index = 0


def read_message(message: Any) -> oip.InferRequest:
    """The request in a ``ModelInferRequest``."""
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        count = len(message.inputs)
        raise ServeError(400, f"the request has {len(raw)} raw_input_contents for {count} inputs; expected one each")
    inputs = [_tensor(tensor, raw[place] if raw else None) for place, tensor in enumerate(message.inputs)]
    outputs = [(each.name, parameters_of(each.parameters)) for each in message.outputs]
    return oip.infer_request(message.id or None, inputs, outputs, parameters_of(message.parameters))


def fill_message(message: Any, served: Served, request: oip.InferRequest, tensors: Sequence[Tensor]) -> Any:
    """Write an answer into a ``ModelInferResponse``, its data as ``raw_output_contents``."""
    message.model_name, message.model_version, message.id = served.name, served.version, request.id or ""
    for tensor in tensors:
        message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.data.shape)
        message.raw_output_contents.append(to_bytes(tensor))
    return message


def parameters_of(messages: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters by name, without unset ones."""
    return {name: value for name, message in messages.items() for _, value in message.ListFields()}


def _tensor(message: Any, raw: bytes | None) -> Tensor:
    """One input, from raw or typed contents."""
    what, datatype = f"input {cut(message.name)}", message.datatype
    oip.check_parameters(what, parameters_of(message.parameters))
    shape = checked_head(what, datatype, message.shape)
    filled = [field.name for field, _ in message.contents.ListFields()]
    if raw is not None:
        if filled:
            raise ServeError(400, f"{what} has {listing(filled)} and raw_input_contents; expected one of them")
        return Tensor(message.name, datatype, from_bytes(what, datatype, shape, raw))
    field = CONTENTS.get(datatype)
    if field is None:
        raise ServeError(400, f"{what} is {datatype}, which has no typed contents; send raw_input_contents")
    if not set(filled) <= {field}:
        raise ServeError(400, f"{what} is {datatype} and has {listing(filled)}; expected {field}")
    values = list(getattr(message.contents, field))
    if datatype not in ("BYTES", "FP32", "FP64"):  # these may be any bytes, or NaN
        return Tensor(message.name, datatype, from_values(what, datatype, shape, values))
    check_values(what, shape, values)
    array = object_array(values, shape) if datatype == "BYTES" else np.array(values, DTYPES[datatype]).reshape(shape)
    return Tensor(message.name, datatype, array)


Handler = Callable[[Any, Any], Any]
"""Answers the message of a call with the response or its fields, perhaps awaited."""


class GrpcFront:
    """A gRPC server for the same service and event loop as REST."""

    def __init__(self, service: Service, count_refusal: Callable[[int], None] = lambda status: None) -> None:  # noqa: ARG005
        self._count_refusal = count_refusal
        self._grpc = require("grpc", "serve", PURPOSE)
        self._service, self._classes = service, message_classes()
        self._server: Any = None
        self._leaving: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        """Listen; returns the port."""
        from grpc import aio

        settings = self._service.settings
        options = [
            ("grpc.max_receive_message_length", settings.max_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", int(settings.workers > 1)),
        ]
        server = aio.server(options=options)
        methods: dict[str, Handler] = {
            "ServerLive": lambda *_: {"live": True},
            "ServerReady": lambda *_: {"ready": self._service.ready},
            "ServerMetadata": lambda *_: oip.server_metadata(),
            "ModelReady": self._model_ready,
            "ModelMetadata": self._model_metadata,
            "ModelInfer": self._infer,
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
        }
        for name, handlers in ((SERVICE, methods), (HEALTH, {"Check": self._check})):
            # declared as streams, so that a message is read only after its call is admitted
            streams = {
                method: self._grpc.stream_unary_rpc_method_handler(self._admits(method, handler))
                for method, handler in handlers.items()
            }
            server.add_generic_rpc_handlers((self._grpc.method_handlers_generic_handler(name, streams),))
        host = f"[{settings.host}]" if ":" in settings.host.strip("[]") else settings.host
        place = f"{host}:{settings.grpc_port or 0}"
        try:
            if settings.tls_cert is None or settings.tls_key is None:
                port = int(server.add_insecure_port(place))
            else:
                pair = Path(settings.tls_key).read_bytes(), Path(settings.tls_cert).read_bytes()
                port = int(server.add_secure_port(place, self._grpc.ssl_server_credentials([pair])))
        except RuntimeError as error:
            raise InputError(f"cannot listen on {place} for gRPC: {cut(error)}; use another --grpc-port") from error
        await server.start()
        self._server = server
        return port

    def leave(self, seconds: float) -> None:
        """Begin to stop; of several calls, the shortest time applies."""
        self._leaving.add(asyncio.get_running_loop().create_task(self.stop(seconds)))

    async def stop(self, seconds: float) -> None:
        """Refuse new requests, and wait for those in progress."""
        if self._server is not None:
            await self._server.stop(seconds)

    def _admits(self, name: str, handler: Handler) -> Callable[[AsyncIterator[bytes], Any], Awaitable[bytes]]:
        """Admit a call, read its message, and answer or abort with an error code."""
        kind = "HealthCheck" if name == "Check" else name
        request_class, response_class = self._classes[f"{kind}Request"], self._classes[f"{kind}Response"]
        admission, token = self._service.admission, self._service.settings.token
        counted = name not in ("ServerLive", "ServerReady", "Check")  # probes need no token, at any load

        async def answered(messages: AsyncIterator[bytes], context: Any) -> bytes:
            call = SimpleNamespace(served=None, scope={}, seconds=context.time_remaining)  # until its deadline
            entered, size = False, 0
            try:
                if counted:
                    if token is not None:
                        sent = dict(context.invocation_metadata() or ()).get("authorization", "")
                        check_token(sent.encode() if isinstance(sent, str) else sent, token)
                    admission.check_requests()
                    admission.requests += 1
                    entered = True
                raw = await _first(messages, self._service.settings.timeout)
                size = len(raw)
                admission.held_bytes += size
                admission.check_bodies(size)
                answer = handler(_parsed(request_class, raw), call)
                answer = await answer if isinstance(answer, Awaitable) else answer
                return (response_class(**answer) if isinstance(answer, dict) else answer).SerializeToString()
            except Exception as error:
                refused = refusal(error)
                if call.served is None:
                    self._count_refusal(refused.status)
                if not isinstance(error, HydrantError):
                    log.exception("%s failed", name)
                code = getattr(self._grpc.StatusCode, CODES.get(refused.status, "INVALID_ARGUMENT"))
                retry = (("grpc-retry-pushback-ms", str(refused.retry_after * 1000)),) if refused.retry_after else ()
                return await context.abort(code, refused.message, retry)
            finally:
                admission.requests -= entered
                admission.held_bytes -= size

        return answered

    def _check(self, message: Any, _: Any) -> Any:
        if message.service not in ("", SERVICE):
            raise ServeError(404, f"no service is called {cut(message.service)}; expected {SERVICE}")
        return {"status": 1 if self._service.ready else 2}  # SERVING, NOT_SERVING

    async def _model_ready(self, message: Any, _: Any) -> Any:
        try:
            return {"ready": self._service.served(message.name or None, message.version or None).ready}
        except ServeError as error:
            if error.status != 503:
                raise
            return {"ready": False}

    async def _model_metadata(self, message: Any, _: Any) -> Any:
        served = self._service.served(message.name or None, message.version or None)
        metadata = oip.model_metadata(served, self._service.versions(served.name))
        del metadata["parameters"]  # the message has no such field
        return metadata

    async def _infer(self, message: Any, call: Any) -> Any:
        with observed(self._service, call, "grpc", cancelled=499):
            call.served = served = self._service.served(message.model_name or None, message.model_version or None)
            request = read_message(message)
            limits = [each for each in (request.timeout, call.seconds()) if each is not None]
            inputs = oip.inputs_of(request, served)
            prediction = await self._service.predict(served, inputs, min(limits, default=None))
            outputs = oip.outputs_of(prediction, request, served)
            return fill_message(self._classes["ModelInferResponse"](), served, request, outputs)

    async def _index(self, message: Any, _: Any) -> Any:
        rows = await asyncio.to_thread(self._service.index)
        return {"models": [row for row in rows if row["state"] == "READY" or not message.ready]}

    async def _load(self, message: Any, _: Any) -> Any:
        name = message.model_name or message.repository_name
        options = convert_fields(parameters_of(message.parameters), oip.LoadParameters, "parameters")
        work = self._service.load(name, options.version, keep=bool(options.keep))
        await asyncio.shield(work)  # even if the client disconnects
        return {"model_name": name, "isLoaded": True}

    async def _unload(self, message: Any, _: Any) -> Any:
        name = message.model_name or message.repository_name
        options = convert_fields(parameters_of(message.parameters), oip.UnloadParameters, "parameters")
        await asyncio.shield(self._service.unload(name, options.version))
        return {"model_name": name, "isUnloaded": True}


async def _first(messages: AsyncIterator[bytes], seconds: float) -> bytes:
    try:
        async with asyncio.timeout(seconds):
            return await anext(messages)
    except TimeoutError:
        raise ServeError(408, f"the message did not arrive within {seconds:g} s") from None
    except StopAsyncIteration:
        raise ServeError(400, "the call has no message; expected one") from None


def _parsed(message: Any, raw: bytes) -> Any:
    try:
        return message.FromString(raw)
    except Exception as error:  # protobuf's DecodeError, of any implementation
        raise ServeError(400, f"the message is malformed: {cut(error, 100)}") from error
