"""``hydrant serve`` over HTTP: answers equal the predictor's, with concurrent requests and failures."""

import base64
import contextlib
import http.client
import io
import json
import math
import multiprocessing
import queue
import random
import re
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import httpx
import hydrant
import numpy as np
import pytest
from hydrant.cli.main import main
from hydrant.runtime.predictor import Predictor
from hydrant.serving.connection import MAX_HEAD
from hydrant.serving.serve_settings import ServeSettings
from hydrant.serving.server import bound, serve_alone
from serve_support import Running, command, make_bundle, picture, running
from support import WORDS, run_cli, save_checkpoint

TOLERANCE = 1e-6
LOAD = "/v2/repository/models/texts/load"
SCORES = ("confidence", "predictive_entropy", "expected_entropy", "mutual_information", "disagreement", "energy")


@pytest.fixture(scope="module")
def models(bert_checkpoint: Path, vit_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two versions of a text model, and one image model."""
    folder = tmp_path_factory.mktemp("models")
    second = tmp_path_factory.mktemp("second") / "checkpoint"
    save_checkpoint(second, 5)
    for place, source, kind in (
        ("texts/1", bert_checkpoint, "text"), ("texts/2", second, "text"), ("images/1", vit_checkpoint, "image"),
    ):  # fmt: skip
        make_bundle(source, folder / place, kind)
    return folder


@pytest.fixture(scope="module")
def service(models: Path) -> Iterator[Running]:
    with running(models, max_bytes=200_000, timeout=5) as service:
        yield service


def rows_one_by_one(bundle: Path, inputs: list[Any]) -> list[dict[str, Any]]:
    """The predictor's row of each input, predicted alone."""
    with hydrant.load(bundle, threads=1) as predictor:
        return [predictor.rows(predictor.predict([each]), [each])[0] for each in inputs]


def same(row: dict[str, Any], expected: dict[str, Any]) -> bool:
    return row["label"] == expected["label"] and all(
        math.isclose(row[name], expected[name], rel_tol=TOLERANCE, abs_tol=TOLERANCE) for name in SCORES
    )


def test_predict_returns_the_rows_of_the_command(service: Running, models: Path, tmp_path: Path) -> None:
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS[5:], k=count)) for count in (1, 2, 3, 5, 8, 13, 30, 60)]
    printed = json.loads(run_cli("predict", models / "texts/2", *texts, "--json", "--probabilities").stdout)
    answered = service.ask(*texts, model="texts", probabilities=True).json()
    assert list(answered) == ["model", "version", "backend", "predictions"]
    assert (
        service.ask(texts[0], model="texts").json()["predictions"]
        == service.client.post("/predict", json={"inputs": texts[0], "model": "texts"}).json()["predictions"]
    )
    assert (answered["model"], answered["version"]) == ("texts", "2")
    assert [list(row) for row in answered["predictions"]] == [list(row) for row in printed["predictions"]]
    for row, other in zip(answered["predictions"], printed["predictions"], strict=True):
        assert same(row, other)
        assert (row["index"], row["input"], row["abstain"]) == (other["index"], other["input"], other["abstain"])
        assert row["probabilities"] == pytest.approx(other["probabilities"], abs=TOLERANCE)
    data = picture()
    (tmp_path / "cat.png").write_bytes(data)
    printed = json.loads(run_cli("predict", models / "images/1", tmp_path / "cat.png", "--json").stdout)
    (expected,) = printed["predictions"]
    client = service.client
    by_form = client.post("/predict?model=images", files=[("image", ("cat.png", data)), ("image", ("dog.png", data))])
    by_base64 = service.ask(base64.b64encode(data).decode(), model="images")
    by_bytes = client.post("/predict?model=images", content=data, headers={"content-type": "image/png"})
    rows = [row for answer in (by_form, by_base64, by_bytes) for row in answer.json()["predictions"]]
    assert [row["input"] for row in rows] == ["cat.png", "dog.png", "image 0", "image 0"]
    assert all(same(row, expected) for row in rows)


def test_the_routes_are_described(service: Running) -> None:
    described = service.client.get("/openapi.json").json()
    for template, methods in described["paths"].items():
        ((method, operation),) = methods.items()
        path = template.replace("{name}", "texts").replace("{version}", "2")
        other = service.client.request({"get": "POST", "post": "GET"}[method], path)
        assert other.status_code == 405, path
        assert method.upper() in other.headers["allow"].split(", "), path  # a set, in any order
        assert operation["summary"]
    assert described["paths"]["/stats"]["get"]["summary"] != described["paths"]["/metrics"]["get"]["summary"]
    assert "``" not in json.dumps(described)
    assert {"/predict", "/explain", "/stats", "/v2/models/{name}/infer"} <= set(described["paths"])
    schemas = described["components"]["schemas"]
    used = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(described)))
    assert used == set(schemas)
    kinds = described["paths"]["/predict"]["post"]["requestBody"]["content"]
    assert set(kinds) == {"application/json", "multipart/form-data", "image/*", "audio/*"}
    answer = service.ask("a text", model="texts").json()
    assert set(schemas["PredictAnswer"]["properties"]) == set(schemas["PredictAnswer"]["required"]) == set(answer)
    values = {"aggregation": None, "timeout": 1.5, "version": None, "model": "texts", "inputs": "a text"}
    body = {name: values.get(name, True) for name in schemas["PredictBody"]["properties"]}
    assert service.client.post("/predict", json=body).status_code == 200


def test_the_open_inference_protocol(service: Running, models: Path) -> None:
    client, text = service.client, "transfer money today"
    (expected,) = rows_one_by_one(models / "texts/2", [text])
    tensor = {"name": "text", "datatype": "BYTES", "shape": [1], "data": [text]}
    for path in ("/v2/models/texts/infer", "/v2/models/texts/versions/2/infer"):
        answer = client.post(path, json={"id": "7", "inputs": [tensor]}).json()
        outputs = {each["name"]: each["data"][0] for each in answer["outputs"]}
        assert (answer["id"], answer["model_name"], answer["model_version"]) == ("7", "texts", "2")
        assert same(outputs, expected)
    head = json.dumps(
        {"inputs": [{**tensor, "parameters": {"binary_data_size": 4 + len(text)}, "data": None}],
         "outputs": [{"name": "energy", "parameters": {"binary_data": True}}]}
    ).replace(', "data": null', "").encode()  # fmt: skip
    body = head + len(text).to_bytes(4, "little") + text.encode()
    answer = client.post(
        "/v2/models/texts/infer", content=body, headers={"Inference-Header-Content-Length": str(len(head))}
    )
    length = int(answer.headers["inference-header-content-length"])
    assert json.loads(answer.content[:length])["outputs"][0]["name"] == "energy"
    assert np.frombuffer(answer.content[length:], np.float32)[0] == pytest.approx(expected["energy"], abs=TOLERANCE)
    assert client.get("/v2").json()["name"] == "hydrant"
    assert client.get("/v2/health/live").json() == {"live": True}
    assert client.get("/v2/health/ready").json() == {"ready": True}
    assert client.get("/v2/models/texts").json()["versions"] == ["2"]
    assert client.get("/v2/models/texts/versions/2/ready").json()["ready"] is True


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "name"),
    [
        ("GET", "/nothing", None, 404, "/nothing"),
        ("GET", "/v2/models/%2e%2e/ready", None, 404, "'..'"),
        ("GET", "/v2/models/texts/versions/9", None, 404, "'9'"),
        ("GET", "/predict", None, 405, "POST"),
        ("POST", "/predict", b'{"inputs": 1}', 400, "$.inputs"),
        ("POST", "/predict", b'{"inputs": ["a", ""], "model": "texts"}', 400, "input 1"),
        ("POST", "/predict", b'{"inputs": ["/etc/passwd"], "model": "images"}', 400, "is not base64"),
        ("POST", "/predict", b'{"inputs": ["L2V0Yy9wYXNzd2Q="], "model": "images"}', 400, "input 0"),
        ("POST", "/predict", b'{"inputs": ["a"], "model": "texts", "timeout": 1e-9}', 504, "not answered within"),
        ("POST", "/v2/models/texts/infer", b"{}", 400, "`inputs`"),
        ("POST", LOAD, b'{"version": "1"}', 400, "`version`"),
        ("POST", "/v2/repository/index", b'{"ready": "yes"}', 400, "$.ready"),
    ],
)  # fmt: skip
def test_every_error_has_one_form(
    service: Running, method: str, path: str, body: bytes | None, status: int, name: str
) -> None:
    answer = service.client.request(method, path, content=body)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert name in answer.json()["error"]
    assert answer.headers["content-type"] == "application/json"


def raw(service: Running, *pieces: bytes, wait: float = 0.0) -> bytes:
    """The answer on a new connection."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as connection:
        for piece in pieces:
            with contextlib.suppress(ConnectionError):
                connection.sendall(piece)
            time.sleep(wait)
        answer = b""
        with contextlib.suppress(ConnectionError):
            while piece := connection.recv(65536):
                answer += piece
        return answer


def test_bodies_and_headers_are_bounded_in_size(service: Running) -> None:
    client = service.client
    answer = client.post("/predict", json={"inputs": ["a" * 200_001]})
    assert (answer.status_code, list(answer.json())) == (413, ["error"])
    answer = client.post("/predict", content=iter([b"x" * 50_000] * 5))  # chunked: of unknown length
    assert (answer.status_code, list(answer.json())) == (413, ["error"])
    for _ in range(3):  # a simple client sends the whole body before it reads
        plain = http.client.HTTPConnection("127.0.0.1", service.port, timeout=20)
        plain.request("POST", "/predict", body=b"x" * 9_000_000)
        assert plain.getresponse().status == 413
        plain.close()
    answer = client.post("/predict", content=b"", headers={"content-encoding": "gzip"})
    assert answer.status_code == 415
    head = b"GET /v2 HTTP/1.1\r\nhost: localhost\r\n"
    assert b" 431 " in raw(service, head + b"a: b\r\n" * (MAX_HEAD // 6 + 10))
    assert b'{"error": "the request is not valid HTTP' in raw(service, b"nonsense\r\n\r\n")
    assert service.client.get("/v2/health/ready").status_code == 200


def test_all_routes_but_probes_need_the_token(models: Path) -> None:
    with running(models / "texts/1", token="a-long-secret") as service:
        assert service.ask("hello").status_code == 200
        for headers in ({}, {"authorization": "Bearer another-secret"}, {"authorization": "a-long-secret"}):
            with httpx.Client(base_url=service.url, headers=headers) as stranger:
                for path in ("/v2", "/v2/models/1", "/v2/repository/index", "/nothing"):
                    answer = stranger.get(path)
                    assert answer.status_code == 401
                    assert answer.headers["www-authenticate"] == "Bearer"
                    assert list(answer.json()) == ["error"]
                assert stranger.get("/v2/health/live").status_code == 200
                assert stranger.get("/v2/health/ready").status_code == 200


def test_tls(models: Path, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-nodes", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
    with running(models / "texts/1", tls_cert=str(cert), tls_key=str(key), grpc_port=0) as service:
        assert service.url.startswith("https://")
        assert service.ask("hello").status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.get(service.url.replace("https", "http"))
        trusted = grpc.ssl_channel_credentials(cert.read_bytes())
        named = [("grpc.ssl_target_name_override", "localhost")]
        with grpc.secure_channel(f"127.0.0.1:{service.grpc_port}", trusted, named) as channel:
            assert live_over(channel)
        with grpc.insecure_channel(f"127.0.0.1:{service.grpc_port}") as channel, pytest.raises(grpc.RpcError):
            live_over(channel)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False  # the certificate has no alternative name
        context.load_verify_locations(cert)
        silent = context.wrap_socket(socket.create_connection(("127.0.0.1", service.port), timeout=20))
        silent.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert silent.recv(1000).startswith(b"HTTP/1.1 200 ")
        start = time.monotonic()
    assert time.monotonic() - start < 20, "an idle client that ignores the end of TLS must not delay the end"
    silent.close()


def live_over(channel: Any) -> bool:
    """Return True if ``ServerLive`` answers with field 1, true."""
    return channel.unary_unary("/inference.GRPCInferenceService/ServerLive")(b"", timeout=20) == b"\x08\x01"


def run_main(*arguments: object) -> tuple[int, str]:
    """Run a command that must fail before serving; returns exit status and standard error."""
    with contextlib.redirect_stderr(io.StringIO()) as errors, contextlib.redirect_stdout(io.StringIO()):
        try:
            status = main(["serve", *map(str, arguments)])
        except SystemExit as leaving:
            status = int(leaving.code or 0)
    return status, errors.getvalue()


def test_startup_errors_are_one_line(models: Path, tmp_path: Path) -> None:
    shutil.copytree(models / "texts/1", tmp_path / "altered")
    (tmp_path / "altered/model.fp32.onnx").write_bytes(b"nothing")
    (tmp_path / "secret").write_text("short\n")
    bundle = models / "texts/1"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments, words in (
            ([bundle, "--port", port], f"cannot listen on port {port}"),
            ([bundle, "--port", 0, "--token-file", tmp_path / "secret"], "the token has 5 characters"),
            ([bundle, "--port", 0, "--tls-cert", "a", "--tls-key", "b"], "'a'"),
            ([bundle, "--port", 0, "--grpc-port", port, "--workers", 2], f"cannot listen on port {port}"),
        ):  # fmt: skip
            status, errors = run_main(*arguments)
            assert (status, errors.count("\n")) == (2, 1), errors
            assert words in errors
    for workers in ("1", "2"):  # only one of two workers reports it
        done = run_cli("serve", tmp_path / "altered", "--port", "0", "--workers", workers)
        assert (done.returncode, done.stdout) == (2, "")
        assert "model.fp32.onnx has 7 bytes, but the manifest says" in done.stderr
        assert done.stderr.count("\n") == 1, done.stderr


@pytest.mark.slow
def test_requests_in_progress_are_answered_after_sigterm(models: Path) -> None:
    texts = ["transfer money today"] * 50
    body = json.dumps({"inputs": texts, "model": "texts"}).encode()
    head = b"POST /predict HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n"
    head += b"content-length: %d\r\n\r\n" % len(body)
    with command(models) as (process, ready), contextlib.ExitStack() as stack:
        assert ready["models"] == {"images": "1", "texts": "2"}
        place = (ready["host"], ready["port"])
        clients = [stack.enter_context(socket.create_connection(place, timeout=30)) for _ in range(3)]
        for each in clients:
            each.sendall(head)
            assert each.recv(1000).startswith(b"HTTP/1.1 100 Continue")  # the server waits for the body
        process.send_signal(signal.SIGTERM)
        for each in clients:
            each.sendall(body)
            answer = b"".join(iter(lambda each=each: each.recv(65536), b""))
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert len(json.loads(answer.partition(b"\r\n\r\n")[2])["predictions"]) == len(texts)
        assert process.wait(30) == 0
        assert process.stderr.read() == ""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(place)


@pytest.mark.slow
def test_workers_share_the_port_and_a_dead_one_is_replaced(models: Path) -> None:
    with command(models / "texts", "--workers", "2", "--grpc-port", "0") as (process, ready):
        assert ready["workers"] == 2
        for _ in range(4):  # each on a new connection
            with grpc.insecure_channel(f"127.0.0.1:{ready['grpc_port']}") as channel:
                assert live_over(channel)
        url = f"http://127.0.0.1:{ready['port']}"
        text = "transfer money today"
        (expected,) = rows_one_by_one(models / "texts/2", [text])
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        served = [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]
        assert len(served) == 2
        assert httpx.post(f"{url}/v2/repository/models/1/load").status_code == 409
        for _ in range(8):
            assert httpx.post(f"{url}/predict", json={"inputs": [text], "model": "2"}, timeout=30).status_code == 200
        until_counted(url, lambda count: count == 8)
        subprocess.run(["kill", "-KILL", served[0]], check=True)
        for _ in range(6):
            with contextlib.suppress(httpx.TransportError):
                answer = httpx.post(f"{url}/predict", json={"inputs": [text], "model": "2"}, timeout=30)
                assert same(answer.json()["predictions"][0], expected)
            time.sleep(0.1)
        until_counted(url, lambda count: 9 <= count <= 14)
        assert httpx.get(f"{url}/stats").json()["process"] == process.pid, "the parent counts for its workers"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert process.stderr.read().count("was refused (409): 2 workers share this port") == 1


@contextlib.contextmanager
def opening(folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Iterator[SimpleNamespace]:
    """A service whose bundle opens once ``warm`` is set, with its announcements; ``leave`` ends it."""
    begun, service = threading.Event(), SimpleNamespace(warm=threading.Event(), announced=queue.Queue())

    def slow(*arguments: Any, **settings: Any) -> Predictor:
        begun.set()
        assert service.warm.wait(60)
        return hydrant.load(*arguments, **settings)

    monkeypatch.setattr("hydrant.serving.service.load", slow)
    ours, theirs = multiprocessing.Pipe()
    with bound("127.0.0.1", 0) as other:
        service.grpc = other.getsockname()[:2]
    settings = ServeSettings(threads=1, grpc_port=service.grpc[1])
    with bound("127.0.0.1", 0) as port, ours, theirs:
        service.place, service.leave = port.getsockname()[:2], ours.close
        thread = threading.Thread(
            target=serve_alone, args=(folder, settings, port, service.announced.put, theirs), kwargs=options
        )
        thread.start()
        try:
            assert begun.wait(60)
            yield service
        finally:
            service.leave()
            service.warm.set()
            thread.join(60)
        assert not thread.is_alive()


READY = b"GET /v2/health/ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


def test_probes_are_answered_while_loading_but_not_by_a_replacement(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opening(models / "texts/1", monkeypatch) as service, socket.create_connection(service.place, 30) as probe:
        probe.sendall(READY)
        assert probe.recv(1000).startswith(b"HTTP/1.1 503 ")
    with opening(models / "texts/1", monkeypatch, warm_first=True) as service:
        with socket.create_connection(service.place, 30) as waits:
            waits.sendall(READY)
            waits.settimeout(0.5)
            with pytest.raises(TimeoutError):
                waits.recv(1)
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(service.grpc)
            service.warm.set()
            assert service.announced.get(timeout=60)["grpc_port"] == service.grpc[1]
            waits.settimeout(30)
            assert waits.recv(1000).startswith(b"HTTP/1.1 200 ")
        with grpc.insecure_channel("{}:{}".format(*service.grpc)) as channel:
            assert live_over(channel)
    with opening(models / "texts/1", monkeypatch, warm_first=True) as service:
        service.leave()
    assert service.announced.empty(), "ended before it was warm"


def until_counted(url: str, enough: Callable[[int], bool]) -> None:
    """Request /stats until the inputs of model 2 are enough."""
    end, count = time.monotonic() + 20, -1
    while not enough(count):
        assert time.monotonic() < end, count
        with contextlib.suppress(httpx.TransportError):
            models = httpx.get(f"{url}/stats", timeout=30).json()["models"]
            count = sum(model["totals"]["inputs"] for model in models if model["name"] == "2")
        time.sleep(0.05)
