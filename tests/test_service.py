"""Models, their versions and their replacement, with fake predictors that return their folder's number."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import httpx
import pytest
from hydrant.errors import InputError
from hydrant.serving.batcher import MAX_CHARACTERS
from hydrant.serving.http_refusals import ServeError
from hydrant.serving.middleware import SMALL_BODY, Admission, Middleware
from hydrant.serving.page import page_routes
from hydrant.serving.predict_routes import PredictRoutes
from hydrant.serving.rest import rest_app
from hydrant.serving.serve_settings import ServeSettings
from hydrant.serving.service import Service, list_bundles
from serve_support import Fake, Statuses, fake_models


@pytest.fixture
def models(tmp_path: Path) -> Path:
    (tmp_path / "cats/nothing").mkdir(parents=True)
    return fake_models(tmp_path, "cats/1", "cats/2", "cats/10", "dogs/7", ".hidden/1")


def run(folder: Path, test: Callable[[Service], Coroutine[Any, Any, None]], *observers: Any, **settings: Any) -> None:
    async def main() -> None:
        service = Service(folder, ServeSettings(**settings), observers, Fake)  # type: ignore[arg-type]
        await service.start()
        assert service.ready
        try:
            await asyncio.wait_for(test(service), 30)
        finally:
            Fake.gate.set()
            await service.drain()
        assert not service.ready

    asyncio.run(main())


async def version_that_answers(service: Service, name: str | None = None, version: str | None = None) -> str:
    served = service.served(name, version)
    prediction = await service.predict(served, ["a", "b"])
    assert prediction.energy.tolist() == [float(served.version)] * 2
    return served.version


def http(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")


def application(service: Service) -> PredictRoutes:
    return PredictRoutes(service, rest_app(service, page_routes(service)))


def guarded(inner: Any, refused: list[int], **settings: Any) -> Middleware:
    options = ServeSettings(**settings)
    admission = Admission(options.requests, 4 * options.max_bytes)
    return Middleware(inner, options, admission, count_refusal=refused.append)


async def empty_answer(send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def states(service: Service) -> dict[str, str]:
    return {f"{row['name']}/{row['version']}": row["state"] for row in service.index()}


def test_bundles_are_listed_by_name_and_version(models: Path, tmp_path: Path) -> None:
    bundles = list_bundles(models)
    assert {name: list(versions) for name, versions in bundles.items()} == {"cats": ["1", "2", "10"], "dogs": ["7"]}
    assert list_bundles(models / "cats") == {name: {"1": models / "cats" / name} for name in ("1", "2", "10")}
    assert list_bundles(models / "dogs/7") == {"7": {"1": models / "dogs/7"}}
    with pytest.raises(InputError, match="nothing"):
        list_bundles(models / "cats/nothing")
    with pytest.raises(InputError, match="nowhere"):
        list_bundles(tmp_path / "nowhere")


def test_the_newest_version_answers_and_can_be_rolled_back(models: Path) -> None:
    async def test(service: Service) -> None:
        assert await version_that_answers(service, "cats") == "10"
        newest = service.served("cats").predictor
        await service.load("cats", "2")
        assert newest.closed  # type: ignore[attr-defined]
        assert await version_that_answers(service, "cats") == "2"
        assert states(service) == {
            "cats/1": "UNAVAILABLE", "cats/2": "READY", "cats/10": "UNAVAILABLE", "dogs/7": "READY",
        }  # fmt: skip
        await service.load("cats", "10", keep=True)
        assert await version_that_answers(service, "cats", "2") == "2"
        assert await version_that_answers(service, "cats") == "10"
        before = service.served("cats").predictor
        await service.load("cats")  # again
        assert before.closed  # type: ignore[attr-defined]
        assert service.served("cats").predictor is not before
        with pytest.raises(ServeError, match="'2'"):
            await version_that_answers(service, "cats", "2")

    run(models, test)


def test_a_swap_drops_no_request_and_the_old_version_finishes_its_own(models: Path) -> None:
    async def test(service: Service) -> None:
        Fake.gate.clear()
        begun = [asyncio.create_task(version_that_answers(service, "cats")) for _ in range(5)]
        await asyncio.sleep(0.01)
        old = service.served("cats")
        swap = asyncio.create_task(service.load("cats", "2"))
        while service.served("cats") is old:
            await asyncio.sleep(0.001)
        assert states(service)["cats/10"] == "UNLOADING"
        later = asyncio.create_task(version_that_answers(service, "cats"))
        await asyncio.sleep(0.01)
        assert not swap.done()
        Fake.gate.set()
        assert await asyncio.gather(*begun) == ["10"] * 5
        assert await later == "2"
        await swap
        assert old.predictor.closed  # type: ignore[attr-defined]

    run(models, test)


def test_a_broken_bundle_changes_nothing(models: Path) -> None:
    async def test(service: Service) -> None:
        (models / "cats/11").mkdir()
        for name in ("hydrant.json", "broken"):
            (models / "cats/11" / name).touch()
        with pytest.raises(ServeError, match="model 'cats', version '11': it is broken") as refused:
            await service.load("cats")
        assert refused.value.status == 409
        assert await version_that_answers(service, "cats") == "10"
        row = next(row for row in service.index() if row["version"] == "11")
        assert row["state"] == "UNAVAILABLE"
        assert "it is broken" in row["reason"]

    run(models, test)


def test_unloading_and_unknown_names(models: Path) -> None:
    async def test(service: Service) -> None:
        with pytest.raises(ServeError, match="cats, dogs"):
            service.served()
        for name in ("birds", "../cats", "cats/10", ".hidden"):
            with pytest.raises(ServeError, match=repr(name)) as unknown:
                await service.load(name)
            assert unknown.value.status == 404
        with pytest.raises(ServeError, match=r"\.\./10"):
            await service.load("cats", "../10")
        await service.unload("dogs")
        with pytest.raises(ServeError, match="'dogs'"):
            service.served("dogs")
        assert await version_that_answers(service) == "10", "the only loaded model answers requests without a name"
        await service.load("dogs")
        assert await version_that_answers(service, "dogs") == "7"
        for name in ("cats", "dogs"):
            await service.unload(name)
        assert service.ready, "unloaded models do not matter, as in Triton"
        assert service.answering == {}

    run(models, test)


def test_bodies_are_bounded_in_total_except_small_ones() -> None:
    large = 80_000
    sizes = [SMALL_BODY, *[large] * 5]

    async def main() -> None:
        free, arrived = asyncio.Event(), 0

        async def inner(scope: Any, receive: Any, send: Any) -> None:
            nonlocal arrived
            while (await receive())["more_body"]:
                pass
            arrived += 1
            await free.wait()
            await empty_answer(send)

        refused: list[int] = []
        async with http(guarded(inner, refused, max_bytes=100_000)) as client:
            requests = [asyncio.create_task(client.post("/predict", content=b"x" * size)) for size in sizes]
            while arrived < 5:
                await asyncio.sleep(0.001)
            rejected = await asyncio.wait_for(requests.pop(), 10)
            assert (rejected.status_code, rejected.headers["retry-after"]) == (503, "1")
            small = asyncio.create_task(client.post("/predict", content=b"x" * SMALL_BODY))
            while arrived < 6:
                await asyncio.sleep(0.001)
            free.set()
            assert [(await each).status_code for each in (*requests, small)] == [204] * 6
            assert (await client.post("/predict", content=b"x" * large)).status_code == 204
        assert refused == [503]

    asyncio.run(main())


def test_rejections_are_counted_once_by_status(models: Path) -> None:
    statuses, refused = Statuses(), []

    async def test(service: Service) -> None:
        app = Middleware(application(service), service.settings, service.admission, count_refusal=refused.append)
        async with http(app) as client:
            for path, body in (
                ("/predict", b"{"), ("/nothing", b""), ("/v2/models/birds/infer", b"{}"), ("/v2/health/ready", b""),
                ("/predict", b'{"inputs": [1], "model": "dogs"}'), ("/explain", b'{"inputs": [1], "model": "dogs"}'),
            ):  # fmt: skip
                await client.post(path, content=body)
            assert (await client.get("/v2")).status_code == 200

    run(models, test, statuses)
    assert refused == [400, 404, 404]
    assert statuses.seen == [("predict", 400), ("page", 400)]


def test_too_long_texts_are_refused(models: Path) -> None:
    async def test(service: Service) -> None:
        for long in ("a" * (MAX_CHARACTERS + 1), ("a", "b" * MAX_CHARACTERS)):
            with pytest.raises(ServeError, match="input 1") as refused:
                await service.predict(service.served("dogs"), ["a", long])
            assert refused.value.status == 413
        assert await version_that_answers(service, "dogs") == "7"

    run(models, test)


def test_metrics_are_available_at_the_request_limit() -> None:
    async def main() -> None:
        free = asyncio.Event()

        async def inner(scope: Any, receive: Any, send: Any) -> None:
            if scope["path"] == "/predict":
                await free.wait()
            await empty_answer(send)

        refused: list[int] = []
        async with http(guarded(inner, refused, requests=1, token="a-long-secret")) as client:
            client.headers["authorization"] = "Bearer a-long-secret"
            busy = asyncio.create_task(client.get("/predict"))
            await asyncio.sleep(0.05)
            paths = ("/metrics", "/stats", "/v2/health/live", "/v2")
            assert [(await client.get(path)).status_code for path in paths] == [204, 204, 204, 503]
            assert (await client.get("/metrics", headers={"authorization": ""})).status_code == 401
            free.set()
            assert (await busy).status_code == 204
            assert refused == [503, 401]

    asyncio.run(main())


@pytest.mark.parametrize(
    "options",
    [
        {"port": 70000}, {"batch_size": 0}, {"timeout": 0}, {"grpc_port": -1}, {"tls_key": "key.pem"},
        {"origins": ["example.com"]}, {"token": "short"}, {"token": "a secret with spaces"},
    ],
)  # fmt: skip
def test_settings_check_themselves(options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(options))) as refused:
        ServeSettings(**options)
    assert "secret" not in str(refused.value)
    assert "short" not in str(refused.value)


def test_predictions_behind_a_path_prefix_and_details_of_failures_only_in_the_log(
    models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(service: Service) -> None:
        routes = application(service)

        async def behind(scope: Any, receive: Any, send: Any) -> None:
            await routes({**scope, "root_path": "/models"}, receive, send)

        async with httpx.AsyncClient(transport=httpx.ASGITransport(behind), base_url="http://localhost/models") as asks:
            assert "the body" in (await asks.post("/predict", content=b"{")).json()["error"]
            for path in ("/v2/models/birds/infer", "/v2/models/birds/versions/1/infer"):
                assert "no model is called 'birds'" in (await asks.post(path)).json()["error"]
            assert "is not a route" in (await asks.post("/v2/models//infer")).json()["error"]
            wrong = await asks.get("/v2/models/dogs/infer")
            assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
            failed = await asks.post("/predict", json={"inputs": ["hello"], "model": "dogs"})
        assert (failed.status_code, "Fake" in failed.json()["error"]) == (500, False)
        assert "'Fake' object has no attribute" in caplog.text

    run(models, test)
