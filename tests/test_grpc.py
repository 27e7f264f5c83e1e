"""The gRPC front in this process, with fake predictors; test_clients.py has third-party clients."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydrant.serving.datatypes import DTYPES
from hydrant.serving.grpc_front import CONTENTS, HEALTH, SERVICE, GrpcFront, message_classes, read_message
from hydrant.serving.http_refusals import ServeError
from hydrant.serving.serve_settings import ServeSettings
from hydrant.serving.service import Service
from hypothesis import given, settings
from hypothesis import strategies as st
from serve_support import Fake, Statuses, fake_models

grpc = pytest.importorskip("grpc")
CLASSES = message_classes()
REQUEST, RESPONSE = CLASSES["ModelInferRequest"], CLASSES["ModelInferResponse"]


def test_messages_have_the_published_field_numbers() -> None:
    """Bytes written by hand from KServe's and Triton's .proto files: tag = number · 8 + wire type."""
    message = REQUEST(model_name="m", model_version="2", id="i", raw_input_contents=[b"r"])
    message.parameters["p"].int64_param = 5
    tensor = message.inputs.add(name="x", datatype="INT64", shape=[1, 300])
    tensor.contents.int64_contents.append(7)
    message.outputs.add(name="y").parameters["b"].bool_param = True
    expected = b"".join([
        b"\x0a\x01m", b"\x12\x012", b"\x1a\x01i",
        b"\x22\x07\x0a\x01p\x12\x02\x10\x05",
        b"\x2a\x14\x0a\x01x\x12\x05INT64\x1a\x03\x01\xac\x02\x2a\x03\x1a\x01\x07",
        b"\x32\x0c\x0a\x01y\x12\x07\x0a\x01b\x12\x02\x08\x01",
        b"\x3a\x01r",
    ])  # fmt: skip
    assert message.SerializeToString(deterministic=True) == expected
    answer = RESPONSE(model_name="m", raw_output_contents=[b"r"])
    answer.outputs.add(name="y", shape=[2])
    assert answer.SerializeToString() == b"\x0a\x01m\x2a\x06\x0a\x01y\x1a\x01\x02\x32\x01r"
    models = CLASSES["RepositoryIndexResponse"](models=[{"name": "m", "version": "1", "state": "s", "reason": "r"}])
    assert models.SerializeToString() == b"\x0a\x0c\x0a\x01m\x12\x011\x1a\x01s\x22\x01r"
    load = CLASSES["RepositoryModelLoadRequest"](model_name="m")
    load.parameters["v"].string_param = "1"
    assert load.SerializeToString() == b"\x12\x01m\x1a\x08\x0a\x01v\x12\x03\x1a\x011"


TYPED = {
    "BOOL": [True, False], "INT8": [-128, 127], "INT16": [-1, 2], "INT32": [-(2**31), 5], "INT64": [-(2**63), 5],
    "UINT8": [0, 255], "UINT16": [1, 2], "UINT32": [2**32 - 1, 0], "UINT64": [2**64 - 1, 0],
    "FP32": [0.5, float("nan")], "FP64": [0.1, float("inf")], "BYTES": [b"a\xff", b""],
}  # fmt: skip


def test_typed_contents_of_every_datatype() -> None:
    assert set(TYPED) == set(CONTENTS) == set(DTYPES) - {"FP16", "BF16"}
    for datatype, values in TYPED.items():
        message = REQUEST()
        each = message.inputs.add(name="x", datatype=datatype, shape=[2, 1])
        getattr(each.contents, CONTENTS[datatype]).extend(values)
        data = read_message(message).inputs[0].data
        assert data.shape == (2, 1)
        np.testing.assert_array_equal(data.ravel(), np.array(values, data.dtype))


def infer(datatype: str = "INT8", shape: tuple[int, ...] = (1,), raw: tuple[bytes, ...] = (), **contents: Any) -> Any:
    message = REQUEST(raw_input_contents=raw)
    message.inputs.add(name="x", datatype=datatype, shape=shape, contents=contents or None)
    return message


MALFORMED = [
    (REQUEST(), "no inputs"),
    (infer(raw=(b"a", b"b")), "2 raw_input_contents"),
    (infer("FP16"), "FP16"),
    (infer(uint_contents=[1]), "uint_contents"),
    (infer(int_contents=[200]), "INT8"),
    (infer("FP32", fp32_contents=[1, 2]), "2 values; expected 1"),
]


@pytest.mark.parametrize(("message", "name"), MALFORMED, ids=[str(place) for place in range(len(MALFORMED))])
def test_malformed_messages_are_refused_plainly(message: Any, name: str) -> None:
    with pytest.raises(ServeError, match=name) as caught:
        read_message(message)
    assert caught.value.status == 400


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=40), st.integers(0, 60))
def test_any_message_is_read_or_raises_a_serve_error(noise: bytes, place: int) -> None:
    from google.protobuf.message import DecodeError

    whole = infer("BYTES", (2,), bytes_contents=[b"ab", b"c"]).SerializeToString()
    for raw in (noise, whole[:place] + noise + whole[place:]):
        with contextlib.suppress(ServeError, DecodeError):
            read_message(REQUEST.FromString(raw))


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return fake_models(tmp_path, "m/1", "m/2")


Calls = Callable[..., Awaitable[Any]]


def serving(folder: Path, test: Callable[[Calls, Service], Awaitable[None]], *observers: Any, **options: Any) -> None:
    """Run a test with a service, over a real port."""

    async def main() -> None:
        service = Service(folder, ServeSettings(grpc_port=0, **options), observers, Fake)  # type: ignore[arg-type]
        await service.start()
        front = GrpcFront(service)
        port = await front.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:

                async def call(name: str, message: Any = None, **options: Any) -> Any:
                    verb, kind = f"/{SERVICE}/{name}", name
                    if name == "Check":
                        verb, kind = f"/{HEALTH}/Check", "HealthCheck"
                    message = CLASSES[f"{kind}Request"]() if message is None else message
                    raw = message if isinstance(message, bytes) else message.SerializeToString()
                    return CLASSES[f"{kind}Response"].FromString(await channel.unary_unary(verb)(raw, **options))

                call.opened = channel.stream_unary(f"/{SERVICE}/ModelInfer")  # type: ignore[attr-defined]
                await asyncio.wait_for(test(call, service), 30)
        finally:
            Fake.gate.set()
            await front.stop(5)
            await service.drain()

    asyncio.run(main())


def texts(*inputs: str, **fields: Any) -> Any:
    message = REQUEST(**{"model_name": "m", **fields})
    message.inputs.add(name="text", datatype="BYTES", shape=[len(inputs)]).contents.bytes_contents.extend(
        text.encode() for text in inputs
    )
    return message


async def refused(work: Awaitable[Any]) -> tuple[str, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await work
    return caught.value.code().name, caught.value.details()


def test_every_verb(models: Path) -> None:
    noted = Statuses()

    async def test(call: Calls, service: Service) -> None:
        assert (await call("ServerLive")).live and (await call("ServerReady")).ready
        assert (await call("Check")).status == 1
        assert (await call("ModelReady", CLASSES["ModelReadyRequest"](name="m", version="2"))).ready
        assert (await call("ServerMetadata")).name == "hydrant"
        metadata = await call("ModelMetadata", CLASSES["ModelMetadataRequest"](name="m"))
        assert (metadata.name, list(metadata.versions), metadata.platform) == ("m", ["2"], "hydrant_fake")
        assert [(each.name, each.datatype, list(each.shape)) for each in metadata.inputs] == [("text", "BYTES", [-1])]
        answer = await call("ModelInfer", texts("ab", "abcd", id="7"))
        assert (answer.model_name, answer.model_version, answer.id) == ("m", "2", "7")
        outputs = dict(zip([each.name for each in answer.outputs], answer.raw_output_contents, strict=True))
        assert outputs["label"] == b"\2\0\0\0\xc3\xa9" * 2
        assert np.frombuffer(outputs["confidence"], "<f4").tolist() == [2, 4]
        message = texts("abc")
        message.outputs.add(name="disagreement")
        assert (await call("ModelInfer", message)).raw_output_contents == [b"\0\0@@"]
        load = CLASSES["RepositoryModelLoadRequest"](model_name="m")
        load.parameters["version"].string_param = "1"
        loaded = await call("RepositoryModelLoad", load)
        assert (loaded.model_name, loaded.isLoaded) == ("m", True)
        assert (await call("ModelInfer", texts("a"))).model_version == "1"
        index = (await call("RepositoryIndex")).models
        assert [(each.version, each.state) for each in index] == [("1", "READY"), ("2", "UNAVAILABLE")]
        ready = (await call("RepositoryIndex", CLASSES["RepositoryIndexRequest"](ready=True))).models
        assert [each.version for each in ready] == ["1"]
        kserve = CLASSES["RepositoryModelUnloadRequest"](repository_name="m")  # where KServe has the model's name
        assert (await call("RepositoryModelUnload", kserve)).isUnloaded
        assert (await refused(call("ModelInfer", texts("a"))))[0] == "NOT_FOUND"

    serving(models, test, noted)
    assert noted.seen == [("grpc", 200)] * 3


def test_errors_have_the_matching_status_code(models: Path, caplog: pytest.LogCaptureFixture) -> None:
    noted = Statuses()

    async def test(call: Calls, service: Service) -> None:
        load = CLASSES["RepositoryModelLoadRequest"](model_name="m")
        load.parameters["config"].string_param = "{}"
        for method, message, code, name in (
            ("ModelInfer", texts("a", model_name="x"), "NOT_FOUND", "'x'"),
            ("ModelInfer", texts("bad"), "INVALID_ARGUMENT", "input 0"),
            ("ModelInfer", REQUEST(model_name="m"), "INVALID_ARGUMENT", "inputs"),
            ("ModelInfer", b"\xff\xff", "INVALID_ARGUMENT", "message"),
            ("ModelInfer", texts("bug"), "INTERNAL", "ZeroDivisionError"),
            ("ModelInfer", texts("x" * 3000), "RESOURCE_EXHAUSTED", ""),
            ("ModelReady", CLASSES["ModelReadyRequest"](name="y"), "NOT_FOUND", "'y'"),
            ("RepositoryModelLoad", load, "INVALID_ARGUMENT", "config"),
            ("Check", CLASSES["HealthCheckRequest"](service="x"), "NOT_FOUND", "'x'"),
        ):
            status, details = await refused(call(method, message))
            assert (status, name in details, "secret" in details) == (code, True, False), details

    serving(models, test, noted, max_bytes=2000)
    assert sorted(noted.seen) == [("grpc", 400), ("grpc", 400), ("grpc", 500)]
    assert "a secret" in caplog.text  # details are in the server's log


def test_all_verbs_but_probes_need_the_token(models: Path) -> None:
    async def test(call: Calls, service: Service) -> None:
        assert (await call("ServerReady")).ready and (await call("Check")).status == 1
        for metadata in (None, [("authorization", "Bearer wrong-token")], [("authorization", "right-token")]):
            assert (await refused(call("ModelInfer", texts("a"), metadata=metadata)))[0] == "UNAUTHENTICATED"
            assert (await refused(call("RepositoryModelUnload", metadata=metadata)))[0] == "UNAUTHENTICATED"
        assert (await call("ModelInfer", texts("a"), metadata=[("authorization", "Bearer right-token")])).model_name

    serving(models, test, token="right-token")


def test_a_message_is_read_after_admission_and_must_arrive_in_time(
    models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Calls without a message: with the token they wait for it, without it they are rejected at once."""

    async def test(call: Any, service: Service) -> None:
        right = [("authorization", "Bearer right-token")]
        code, _ = await refused(call.opened(metadata=[("authorization", "Bearer wrong-token")]))
        assert code == "UNAUTHENTICATED"
        slow = [call.opened(metadata=right) for _ in range(2)]
        assert [(await refused(each))[0] for each in slow] == ["DEADLINE_EXCEEDED"] * 2
        empty = call.opened(metadata=right)
        await empty.done_writing()
        assert (await refused(empty))[0] == "INVALID_ARGUMENT"
        left = call.opened(metadata=right)
        await left.wait_for_connection()
        left.cancel()
        raw = texts("abc").SerializeToString()
        late = call.opened(metadata=right)
        await asyncio.sleep(0.1)
        await late.write(raw)
        await late.done_writing()
        assert CLASSES["ModelInferResponse"].FromString(await late).model_name == "m"

    serving(models, test, token="right-token", timeout=0.3)
    assert not caplog.records


def test_inputs_of_a_cancelled_call_leave_the_queue(models: Path) -> None:
    noted = Statuses()

    async def test(call: Calls, service: Service) -> None:
        Fake.gate.clear()
        batcher = service.served("m").batcher
        first = asyncio.ensure_future(call("ModelInfer", texts("first")))
        await asyncio.to_thread(Fake.runs.wait, 20)
        left = asyncio.ensure_future(call("ModelInfer", texts("left")))
        late = asyncio.ensure_future(call("ModelInfer", texts("late"), timeout=0.3))
        soon = texts("soon")
        soon.parameters["timeout"].int64_param = 200_000
        soon = asyncio.ensure_future(call("ModelInfer", soon))
        while batcher.depth < 3:
            await asyncio.sleep(0.01)
        left.cancel()
        assert (await refused(late))[0] == "DEADLINE_EXCEEDED"
        assert (await refused(soon))[0] == "DEADLINE_EXCEEDED"
        while batcher.depth:
            await asyncio.sleep(0.01)
        Fake.gate.set()
        assert (await first).model_name == "m"
        assert service.served("m").predictor.ran == ["first"]  # type: ignore[attr-defined]

    serving(models, test, noted)
    assert sorted(noted.seen)[0] == ("grpc", 200) and ("grpc", 499) in noted.seen and len(noted.seen) == 4


def test_the_request_limit_and_a_stopping_service(models: Path) -> None:
    async def test(call: Calls, service: Service) -> None:
        Fake.gate.clear()
        first = asyncio.ensure_future(call("ModelInfer", texts("a")))
        await asyncio.to_thread(Fake.runs.wait, 20)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call("ModelInfer", texts("b"))
        assert caught.value.code().name == "UNAVAILABLE"
        assert ("grpc-retry-pushback-ms", "1000") in list(caught.value.trailing_metadata())
        assert (await call("ServerReady")).ready
        service.leaving = True
        assert not (await call("ServerReady")).ready and (await call("Check")).status == 2
        Fake.gate.set()
        assert (await first).model_name == "m"

    serving(models, test, requests=1)
