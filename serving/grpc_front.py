"""gRPC: ``inference.GRPCInferenceService`` of the Open Inference Protocol v2, and the health service for probes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from ..errors import HydrantError, InputError, cut, require
from .errors import ServeError, refusal
from .grpc_codec import fill_message, parameters_of, read_message
from .grpc_messages import HEALTH, SERVICE, message_classes
from .guard import check_token
from .messages import InferResponse
from .protocol import inputs_of, model_metadata, outputs_of, server_metadata
from .service import Served, Service
from .settings import ServeSettings
from .verbs import LOAD, UNLOAD, check_alone, verb_parameters

log = logging.getLogger(__name__)

PURPOSE = "serve over gRPC"
SERVING, NOT_SERVING = 1, 2
"""Of ``grpc.health.v1``."""

CODES = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    409: "FAILED_PRECONDITION",
    413: "RESOURCE_EXHAUSTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""Status of HTTP → of gRPC; every other is ``INVALID_ARGUMENT``."""

OPEN = ("ServerLive", "ServerReady", "Check")
"""Verbs that need no token, and are answered however busy the service is, as REST does."""


@dataclass
class _Call:
    """One call on its way, and whether it reached a model, so that the observers are told of it."""

    context: Any
    reached: bool = False


Verb = Callable[[Any, _Call], Awaitable[Any]]


class GrpcFront:
    """A server of gRPC within the event loop that serves REST, too; both ask the same service."""

    def __init__(self, service: Service, refused: Callable[[int], None] = lambda status: None) -> None:  # noqa: ARG005
        self._refused = refused
        self._grpc = require("grpc", "serve", PURPOSE)
        self._aio = require("grpc.aio", "serve", PURPOSE)
        self._service, self._made = service, message_classes()
        self._server: Any = None
        self._leaving: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        """Listen where the settings say.

        Returns:
            The port.
        """
        settings = self._service.settings
        options = {
            "grpc.max_receive_message_length": settings.max_bytes,
            "grpc.max_send_message_length": -1,
            "grpc.so_reuseport": int(settings.workers > 1),
        }
        server = self._aio.server(options=list(options.items()))
        handlers = self._grpc.method_handlers_generic_handler
        server.add_generic_rpc_handlers((handlers(SERVICE, self._handlers(self._verbs())),))
        server.add_generic_rpc_handlers((handlers(HEALTH, self._handlers({"Check": self._check})),))
        host = f"[{settings.host}]" if ":" in settings.host.strip("[]") else settings.host
        place = f"{host}:{settings.grpc_port or 0}"
        try:
            port = self._listen(server, place, settings)
        except RuntimeError as error:
            raise InputError(f"cannot listen on {place} for gRPC: {cut(error)}; give another --grpc-port") from error
        await server.start()
        self._server = server
        return port

    def leave(self, seconds: float) -> None:
        """Begin to stop; called again, with the shorter time of the two."""
        self._leaving.add(asyncio.get_running_loop().create_task(self.stop(seconds)))

    async def stop(self, seconds: float) -> None:
        """Take no more requests, and wait for those that are here."""
        if self._server is not None:
            await self._server.stop(seconds)

    def _listen(self, server: Any, place: str, settings: ServeSettings) -> int:
        if settings.tls_cert is None or settings.tls_key is None:
            return int(server.add_insecure_port(place))
        pair = Path(settings.tls_key).read_bytes(), Path(settings.tls_cert).read_bytes()
        return int(server.add_secure_port(place, self._grpc.ssl_server_credentials([pair])))

    def _verbs(self) -> dict[str, Verb]:
        return {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelInfer": self._infer,
            "RepositoryIndex": self._index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
        }

    def _handlers(self, verbs: dict[str, Verb]) -> dict[str, Any]:
        """Verbs as gRPC takes them: from bytes to bytes.

        They are told to gRPC as taking a stream, which is the same on the wire: so a message is read once it is let in.
        """
        return {name: self._grpc.stream_unary_rpc_method_handler(self._answers(name, verbs[name])) for name in verbs}

    def _answers(self, name: str, verb: Verb) -> Callable[[AsyncIterator[bytes], Any], Awaitable[bytes]]:
        """What lets a call in, reads its message, answers it, and tells a refusal in the words of gRPC."""
        request_class = self._made["HealthCheckRequest" if name == "Check" else f"{name}Request"]

        async def answered(messages: AsyncIterator[bytes], context: Any) -> bytes:
            counted = name not in OPEN  # whoever has no token must not fill the places of those who have one
            call, room, entered, came = _Call(context), self._service.room, False, 0
            try:
                if counted:
                    self._let_in(context)
                    room.here += 1
                    entered = True
                raw = await _first(messages, self._service.settings.timeout)
                came = len(raw)
                room.held += came
                room.check_bodies(came)
                return (await verb(_parsed(request_class, raw), call)).SerializeToString()
            except Exception as error:
                found = refusal(error)
                if not call.reached:
                    self._refused(found.status)
                if not isinstance(error, HydrantError):
                    log.exception("%s failed", name)
                code = getattr(self._grpc.StatusCode, CODES.get(found.status, "INVALID_ARGUMENT"))
                again = (
                    () if found.retry_after is None else (("grpc-retry-pushback-ms", str(found.retry_after * 1000)),)
                )
                return await context.abort(code, found.message, again)
            finally:
                room.here -= entered
                room.held -= came

        return answered

    def _let_in(self, context: Any) -> None:
        """Refuse who has no token, and too many at a time."""
        settings = self._service.settings
        if settings.token is not None:
            given = dict(context.invocation_metadata() or ()).get("authorization", "")
            check_token(given.encode() if isinstance(given, str) else given, settings.token)
        self._service.room.check_requests()

    async def _check(self, message: Any, _: Any) -> Any:
        if message.service not in ("", SERVICE):
            raise ServeError(404, f"no service is called {cut(message.service)}; there is {SERVICE}")
        return self._made["HealthCheckResponse"](status=SERVING if self._service.ready else NOT_SERVING)

    async def _server_live(self, _: Any, __: Any) -> Any:
        return self._made["ServerLiveResponse"](live=self._service.live)

    async def _server_ready(self, _: Any, __: Any) -> Any:
        return self._made["ServerReadyResponse"](ready=self._service.ready)

    async def _model_ready(self, message: Any, _: Any) -> Any:
        try:
            ready = self._served(message.name, message.version).ready
        except ServeError as error:
            if error.status != 503:
                raise
            ready = False
        return self._made["ModelReadyResponse"](ready=ready)

    async def _server_metadata(self, _: Any, __: Any) -> Any:
        return self._made["ServerMetadataResponse"](**server_metadata())

    async def _model_metadata(self, message: Any, _: Any) -> Any:
        served = self._served(message.name, message.version)
        found = model_metadata(served, self._service.versions(served.name))
        del found["parameters"]  # there is no field for them
        return self._made["ModelMetadataResponse"](**found)

    async def _infer(self, message: Any, call: _Call) -> Any:
        started, status = perf_counter(), 500
        served = self._served(message.model_name, message.model_version)
        call.reached = True
        try:
            asked = read_message(message)
            served, prediction = await self._service.predict(
                inputs_of(asked, served),
                model=served.name,
                version=message.model_version or None,
                timeout=_least(asked.timeout, call.context.time_remaining()),
            )
            outputs = outputs_of(prediction, asked, served)
            response = InferResponse(served.name, served.version, asked.id, outputs)
            filled = fill_message(self._made["ModelInferResponse"](), response)
            status = 200
            return filled
        except asyncio.CancelledError:
            status = 499
            raise
        except Exception as error:
            status = refusal(error).status
            raise
        finally:
            self._service.observer.request(served, "grpc", perf_counter() - started, status)

    async def _index(self, message: Any, _: Any) -> Any:
        rows = await asyncio.to_thread(self._service.index)
        models = [row for row in rows if row["state"] == "READY" or not message.ready]
        return self._made["RepositoryIndexResponse"](models=models)

    async def _load(self, message: Any, _: Any) -> Any:
        name, given = self._changed(message, LOAD)
        work = self._service.load(name, given.get("version"), keep=given.get("keep", False))
        await asyncio.shield(work)  # whether the client stays or not
        return self._made["RepositoryModelLoadResponse"](model_name=name, isLoaded=True)

    async def _unload(self, message: Any, _: Any) -> Any:
        name, given = self._changed(message, UNLOAD)
        await asyncio.shield(self._service.unload(name, given.get("version")))
        return self._made["RepositoryModelUnloadResponse"](model_name=name, isUnloaded=True)

    def _changed(self, message: Any, known: Mapping[str, type]) -> tuple[str, dict[str, Any]]:
        """The model that a verb of the repository names, in Triton's field or in KServe's, and its parameters."""
        check_alone(self._service.settings)
        return message.model_name or message.repository_name, verb_parameters(parameters_of(message.parameters), known)

    def _served(self, name: str, version: str) -> Served:
        return self._service.served(name or None, version or None)


async def _first(messages: AsyncIterator[bytes], seconds: float) -> bytes:
    """The message of a call, which has one."""
    try:
        async with asyncio.timeout(seconds):
            return await anext(messages)
    except TimeoutError:
        raise ServeError(408, f"the message did not come within {seconds:g} s") from None
    except StopAsyncIteration:
        raise ServeError(400, "the call has no message; expected one") from None


def _parsed(message: Any, raw: bytes) -> Any:
    try:
        return message.FromString(raw)
    except Exception as error:  # protobuf's DecodeError, whichever of its implementations runs
        raise ServeError(400, f"the message is not of the protocol: {cut(error, 100)}") from error


def _least(*seconds: float | None) -> float | None:
    """The shortest of some times, where there is one."""
    return min((each for each in seconds if each is not None), default=None)
