"""``hydrant-run --serve``: the same answers as in Python over HTTP, bounded, with one form of error, until SIGTERM."""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import pytest
from cpp import inputs_of, refused, run
from golden import images_case, labels_case, scores_case, text_case

LOOPBACK = "127.0.0.1"


class Server:
    """A running ``hydrant-run --serve``."""

    def __init__(self, process: subprocess.Popen[str], line: str) -> None:
        self.process, self.line = process, line
        self.port = int(line.partition(" (")[0].rsplit(":", 1)[1])

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, dict[str, str]]:
        """Status, decoded JSON and headers of one request on a connection of its own."""
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=60)
        try:
            return answer_on(connection, method, path, body, **headers)
        finally:
            connection.close()

    def refusal(self, status: int, method: str, path: str, body: Any = None, **headers: str) -> str:
        """The message of a request that is refused: JSON with an error alone."""
        found, told, _ = self.ask(method, path, body, **headers)
        assert (found, list(told)) == (status, ["error"]), told
        assert "\n" not in told["error"]
        return str(told["error"])


def answer_on(
    connection: http.client.HTTPConnection, method: str, path: str, body: Any = None, **headers: str
) -> tuple[int, Any, dict[str, str]]:
    content = body if body is None or isinstance(body, bytes | str) else json.dumps(body)
    connection.request(method, path, content, headers)
    reply = connection.getresponse()
    text = reply.read()
    assert reply.headers["Content-Type"] == "application/json", text
    return reply.status, json.loads(text), dict(reply.headers)


@contextmanager
def serving(runner: Path, bundle: Path, *options: object, last: str = "stopped\n") -> Iterator[Server]:
    """A server on a port of the system's choice, stopped at the end."""
    words = [str(word) for word in (runner, bundle, "--serve", "--port", 0, *options)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith(f"serving {bundle.name} on http://"), (process.poll(), process.communicate())
        yield Server(process, line)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out, err) == (0, "", last)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    text_case(folder / "bert", "bert", "aps")
    scores_case(folder / "scores", "identity")
    labels_case(folder / "labels", "bert")
    images_case(folder / "vit-images", {"size": {"height": 12, "width": 12}, "resample": 2})
    return folder


@pytest.fixture(scope="module")
def server(runner: Path, cases: Path) -> Iterator[Server]:
    if "was built without libmicrohttpd" in run(runner, cases / "bert/bundle", "--serve", "--host", "nowhere").stderr:
        pytest.skip("hydrant-run was built without libmicrohttpd")
    with serving(runner, cases / "bert/bundle") as found:
        yield found


def infer_body(tensors: dict[str, np.ndarray], flat: bool = False, **more: Any) -> dict[str, Any]:
    kinds = {"i": "INT64", "f": "FP32"}
    inputs = [
        {
            "name": name,
            "datatype": kinds[array.dtype.kind],
            "shape": list(array.shape),
            "data": (array.ravel() if flat else array).tolist(),
        }
        for name, array in tensors.items()
    ]
    return {"inputs": inputs, **more}


def outputs(told: dict[str, Any]) -> dict[str, np.ndarray]:
    """The outputs of an answer as arrays, each of the shape that it says."""
    return {each["name"]: np.array(each["data"]).reshape(each["shape"]) for each in told["outputs"]}


def check_fields(found: dict[str, np.ndarray], wanted: hydrant.Prediction, labels: list[str]) -> None:
    """Every field of Python's prediction, and nothing else but the names of labels."""
    fields = wanted.to_dict()
    expected = set(fields) | ({"label_index"} if "label" in fields else set())
    assert set(found) == expected
    for name, array in fields.items():
        if name == "label":
            np.testing.assert_array_equal(found["label_index"], array)
            assert found["label"].tolist() == [labels[index] for index in array]
        else:
            np.testing.assert_allclose(found[name], array, atol=1e-6, err_msg=name)
            assert (found[name].dtype == bool) == (array.dtype == bool)


@pytest.mark.parametrize("case", ["bert", "scores", "labels"])
def test_tensors_are_answered_as_in_python(case: str, runner: Path, cases: Path, server: Server) -> None:
    tensors = inputs_of(cases / case)
    with hydrant.load(cases / case / "bundle", "onnxruntime") as predictor:
        wanted, labels = predictor.predict(tensors), list(predictor.labels)
        python_rows = predictor.rows(wanted, [f"row {index}" for index in range(len(wanted))])
    with serving(runner, cases / case / "bundle") as found:
        status, told, _ = found.ask("POST", "/v2/models/bundle/infer", infer_body(tensors, id="a 1"))
        assert (status, told["model_name"], told["model_version"], told["id"]) == (200, "bundle", "1", "a 1")
        check_fields(outputs(told), wanted, labels)
        _, metadata, _ = found.ask("GET", "/v2/models/bundle")
        described = {each["name"]: (each["datatype"], each["shape"][1:]) for each in metadata["outputs"]}
        assert described == {each["name"]: (each["datatype"], each["shape"][1:]) for each in told["outputs"]}
        assert metadata["parameters"]["labels"] == labels
        status, told, _ = found.ask(
            "POST", "/predict", {"inputs": {name: array.tolist() for name, array in tensors.items()}}
        )
        assert (status, told["backend"], len(told["predictions"])) == (200, "onnxruntime", len(wanted))
        for mine, theirs in zip(told["predictions"], python_rows, strict=True):
            assert list(mine) == list(theirs)
            for key, value in theirs.items():
                assert mine[key] == (pytest.approx(value, abs=1e-6) if isinstance(value, float) else value) or (
                    key == "labels"
                ), key


def test_images_are_answered_as_in_python(runner: Path, cases: Path, server: Server) -> None:
    files = sorted((cases / "vit-images/images").iterdir())
    encoded = [base64.b64encode(file.read_bytes()).decode() for file in files]
    with hydrant.load(cases / "vit-images/bundle", "onnxruntime") as predictor:
        wanted, labels = predictor.predict(files), list(predictor.labels)
    with serving(runner, cases / "vit-images/bundle") as found:
        image = {"name": "image", "datatype": "BYTES", "shape": [len(files), 1], "data": encoded}
        status, told, _ = found.ask("POST", "/v2/models/bundle/infer", {"inputs": [image]})
        assert status == 200, told
        check_fields(outputs(told), wanted, labels)
        status, told, _ = found.ask("POST", "/predict", {"inputs": encoded, "probabilities": True})
        rows = told["predictions"]
        np.testing.assert_allclose(
            [list(row["probabilities"].values()) for row in rows], wanted.probabilities, atol=1e-6
        )
        assert rows[1]["input"] == "image 1"
        _, metadata, _ = found.ask("GET", "/v2/models/bundle")
        assert metadata["inputs"] == [{"name": "image", "datatype": "BYTES", "shape": [-1]}]
        assert "not base64" in found.refusal(400, "POST", "/predict", {"inputs": ["no image!"]})
        assert "cannot read image input 1" in found.refusal(
            400, "POST", "/predict", {"inputs": [encoded[0], base64.b64encode(b"no image").decode()]}
        )


def test_what_it_says_of_itself(server: Server) -> None:
    assert server.ask("GET", "/v2/health/live")[:2] == (200, {"live": True})
    assert server.ask("GET", "/v2/health/ready")[:2] == (200, {"ready": True})
    assert server.ask("GET", "/v2")[:2] == (200, {"name": "hydrant", "version": hydrant.__version__, "extensions": []})
    for path in ("/v2/models/bundle", "/v2/models/bundle/versions/1"):
        status, told, _ = server.ask("GET", path)
        assert (status, told["name"], told["versions"], told["platform"]) == (
            200,
            "bundle",
            ["1"],
            "hydrant_onnxruntime",
        )
        assert {each["name"] for each in told["inputs"]} == {"input_ids", "attention_mask", "token_type_ids"}
        assert all(each == {**each, "datatype": "INT64", "shape": [-1, -1]} for each in told["inputs"])
        assert server.ask("GET", f"{path}/ready")[:2] == (200, {"name": "bundle", "version": "1", "ready": True})


def test_one_output_of_flat_data(server: Server, cases: Path) -> None:
    tensors = {name: array[:3] for name, array in inputs_of(cases / "bert").items()}
    wanted = [{"name": "confidence"}, {"name": "label_index"}]
    _, all_of_it, _ = server.ask("POST", "/v2/models/bundle/infer", infer_body(tensors))
    body = infer_body(tensors, flat=True, outputs=wanted)
    for path in ("/v2/models/bundle/infer", "/v2/models/bundle/versions/1/infer"):
        _, told, _ = server.ask("POST", path, body)
        assert [each["name"] for each in told["outputs"]] == ["confidence", "label_index"]
        assert "id" not in told
        for name, array in outputs(told).items():
            np.testing.assert_array_equal(array, outputs(all_of_it)[name])


IDS = {"name": "input_ids", "datatype": "INT64", "shape": [1, 2], "data": [1, 2]}
MASK = {**IDS, "name": "attention_mask", "data": [[1, 1]]}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"\xff\xfe{}", "is not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"inputs": [NaN]}', "is not JSON"),
        ([], "is a JSON array; expected an object"),
        ({}, "has no inputs"),
        ({"inputs": []}, "expected an array of 1 to 16 tensors"),
        ({"inputs": [7]}, "inputs[0] is '7'"),
        ({"inputs": [{**IDS, "name": 1}]}, "expected a string"),
        ({"inputs": [{**IDS, "shape": [1, -2]}]}, "whole numbers, 0 or more"),
        ({"inputs": [{**IDS, "shape": [2**31 - 1] * 8}]}, "which no request can hold"),
        ({"inputs": [{**IDS, "shape": [0, 2], "data": []}]}, "expected 1 input or more"),
        ({"inputs": [{**IDS, "shape": [1, 3]}]}, "has shape [1, 3], but 2 values"),
        ({"inputs": [{**IDS, "data": [[1], [2]]}]}, "2 parts on axis 0"),
        ({"inputs": [{**IDS, "data": [1.5, 2]}]}, "holds '1.5'; expected whole numbers"),
        ({"inputs": [{**IDS, "data": [10**30, 2]}]}, "expected whole numbers"),
        ({"inputs": [{**IDS, "datatype": "FP32", "data": [1e300, 2]}]}, "expected finite numbers"),
        ({"inputs": [{**IDS, "datatype": "BYTES"}]}, "has datatype 'BYTES'"),
        ({"inputs": [IDS, IDS]}, "is given twice"),
        ({"inputs": [IDS]}, "tensors are named input_ids; expected attention_mask, input_ids"),
        ({"inputs": [{**IDS, "data": [10**6, 2]}, MASK]}, "input_ids has values from 2 to 1000000"),
        ({"inputs": [IDS, MASK], "outputs": [{"name": "no"}]}, "output 'no' is unknown; this model gives"),
        ({"inputs": [IDS, MASK], "outputs": [{"name": "energy"}] * 2}, "asked for twice"),
        ({"inputs": [IDS, MASK], "id": 3}, "id is '3'; expected a string"),
        ({"inputs": [{**IDS, "parameters": {"binary_data_size": 16}}, MASK]}, "binary tensors are not spoken here"),
        ({"inputs": [IDS, MASK], "parameters": {"binary_data_output": True}}, "binary tensors are not spoken here"),
        ({"inputs": [IDS, MASK], "parameters": {"sequence_id": 5}}, "parameter sequence_id, which is not served"),
    ],
)
def test_bodies_that_are_refused(server: Server, body: Any, words: str) -> None:
    assert words in server.refusal(400, "POST", "/v2/models/bundle/infer", body)


@pytest.mark.parametrize("each", [b"{}", b"[]", b'"["', b"1"])
def test_bodies_of_many_small_parts_are_read_in_time(server: Server, each: bytes) -> None:
    """A parser that looks at all that it has read for each part would take hours."""
    body = b'{"inputs": [' + b",".join([each] * 500_000) + b'], "no": 1}'
    assert "has the key 'no'" in server.refusal(400, "POST", "/predict", body)


def test_what_predict_refuses(server: Server) -> None:
    refusal = lambda body: server.refusal(400, "POST", "/predict", body)  # noqa: E731
    assert "has the key 'texts'; expected inputs, model, probabilities, version" in refusal({"texts": ["a"]})
    assert "expected an array of inputs" in refusal({"inputs": "a text"})
    assert server.ask("POST", "/predict", {"inputs": []})[1]["predictions"] == []
    assert "is unknown" in server.refusal(404, "POST", "/predict", {"inputs": [], "model": "other"})
    assert "has no version '7'" in server.refusal(404, "POST", "/predict", {"inputs": [], "version": "7"})
    assert "expected application/json" in server.refusal(415, "POST", "/predict", b"x", **{"Content-Type": "image/png"})
    assert "expected a nested array of numbers" in refusal({"inputs": {"input_ids": 3}})
    assert "has shape [2, 2], but its data has 1 parts" in refusal({"inputs": {"input_ids": [[1, 2], [3]]}})
    assert "compressed" in server.refusal(415, "POST", "/predict", b"x", **{"Content-Encoding": "gzip"})


def test_pages_of_other_sites_are_refused(server: Server) -> None:
    own = f"127.0.0.1:{server.port}"
    assert server.ask("GET", "/v2", Origin=f"http://{own}")[0] == 200
    for origin in ("https://example.com", "null", f"http://{own}.example.com"):
        assert "page of another site" in server.refusal(403, "GET", "/v2", Origin=origin)
    for name in ("rebound.example", "127.rebound.example", "127.0.0.1.rebound.example"):
        pointed = {"Host": f"{name}:{server.port}", "Origin": f"http://{name}:{server.port}"}
        assert "page of another site" in server.refusal(403, "POST", "/predict", {"inputs": []}, **pointed)
        # what is only read on one's own site goes without an origin
        assert "is not this machine; ask at 127.0.0.1" in server.refusal(403, "GET", "/v2", Host=pointed["Host"])
    for host in ("localhost", f"LocalHost:{server.port}", "[::1]", "127.1.2.3"):
        assert server.ask("GET", "/v2", Host=host)[0] == 200


def test_paths_methods_and_headers_that_are_refused(server: Server) -> None:
    for path in (
        "/",
        "/v3",
        "/v2/models",
        "/v2/models/bundle/no",
        "/../../etc/passwd",
        "/v2/models/bundle%2f..",
        "/%00",
    ):
        assert server.refusal(404, "GET", path)
    assert "model 'other' is unknown" in server.refusal(404, "POST", "/v2/models/other/infer", {})
    assert "has no version '2'" in server.refusal(404, "GET", "/v2/models/bundle/versions/2")
    status, told, headers = server.ask("GET", "/predict")
    assert (status, headers["Allow"], list(told)) == (405, "POST", ["error"])
    assert server.refusal(405, "POST", "/v2/health/live", b"{}")
    assert server.refusal(405, "DELETE", "/v2")
    length = {"Inference-Header-Content-Length": "10"}
    assert "binary tensors" in server.refusal(400, "POST", "/v2/models/bundle/infer", b"{}", **length)


def test_a_token_is_asked_for_before_a_body_is_kept(runner: Path, cases: Path, server: Server, tmp_path: Path) -> None:
    secret = "s3cret-of-32-characters-or-so!"
    (tmp_path / "token").write_text(f"  {secret}\n")
    body = infer_body(inputs_of(cases / "bert"))
    with serving(runner, cases / "bert/bundle", "--token-file", tmp_path / "token", "--max-bytes", 2**20) as guarded:
        for path in ("/v2/health/live", "/v2/health/ready"):
            assert guarded.ask("GET", path)[0] == 200
        wrong = (
            "",
            secret,
            f"Basic {secret}",
            f"Bearer {secret}x",
            f"Bearer {secret[:-1]}",
            "Bearer ",
            f"Bearer{secret}",
        )
        for given in wrong:
            status, told, headers = guarded.ask("GET", "/v2", Authorization=given)
            assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
            assert told == {"error": "the token is missing or wrong; send it as Authorization: Bearer TOKEN"}
        assert "token" in guarded.refusal(401, "GET", "/v2")
        assert "token" in guarded.refusal(401, "POST", "/v2/models/bundle/infer", body)
        assert "token" in guarded.refusal(401, "POST", "/predict", b"x" * (6 * 2**20))  # thrown away as it comes
        for scheme in ("Bearer", "bearer"):
            assert guarded.ask("GET", "/v2", Authorization=f"{scheme} {secret}")[0] == 200
        status, told, _ = guarded.ask("POST", "/v2/models/bundle/infer", body, Authorization=f"Bearer {secret}")
        assert status == 200
        memory = Path(f"/proc/{guarded.process.pid}/status").read_text()
        assert int(memory.split("VmHWM:")[1].split()[0]) < 200_000, "kB"
    assert server.ask("POST", "/v2/models/bundle/infer", body)[1]["outputs"] == told["outputs"]


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"short", "has 5 characters"), (b"two words here", "holds a space"), ("päßword".encode() * 2, "not ASCII")],
)
def test_tokens_that_are_refused(
    runner: Path, cases: Path, server: Server, tmp_path: Path, content: bytes, words: str
) -> None:
    (tmp_path / "token").write_bytes(content)
    done = run(runner, cases / "bert/bundle", "--serve", "--token-file", tmp_path / "token")
    refused(done, words)
    assert content.decode() not in done.stderr


def test_bodies_that_are_too_large(runner: Path, cases: Path, server: Server) -> None:
    with serving(runner, cases / "bert/bundle", "--max-bytes", 2**20) as small:
        assert "is not JSON" in small.refusal(400, "POST", "/predict", b" " * 2**20)
        assert "larger than 1048576 bytes" in small.refusal(413, "POST", "/predict", b" " * (2**20 + 1))
        chunks = (b" " * 2**16 for _ in range(40))
        connection = http.client.HTTPConnection(LOOPBACK, small.port, timeout=60)
        connection.request("POST", "/predict", chunks)  # in chunks, whose length nobody said
        assert connection.getresponse().status == 413
        connection.close()
        with socket.create_connection((LOOPBACK, small.port), timeout=60) as raw:
            raw.sendall(b"POST /predict HTTP/1.1\r\nHost: h\r\nContent-Length: 999999999999\r\n\r\n")
            assert raw.recv(100).startswith(b"HTTP/1.1 413")
        headless = socket.create_connection((LOOPBACK, small.port), timeout=60)
        with headless, pytest.raises(ConnectionError):  # a first line without an end is closed soon
            while True:
                headless.sendall(b"x" * 2**16)
        assert small.ask("GET", "/v2/health/ready")[0] == 200
        status = Path(f"/proc/{small.process.pid}/status").read_text()
        assert int(status.split("VmHWM:")[1].split()[0]) < 200_000, "kB"


def test_many_clients_at_once_each_get_their_own_answer(server: Server, cases: Path) -> None:
    tensors = inputs_of(cases / "bert")
    _, told, _ = server.ask("POST", "/v2/models/bundle/infer", infer_body(tensors))
    alone = outputs(told)["probabilities"]

    def client(number: int) -> int:
        connection = http.client.HTTPConnection(LOOPBACK, server.port, timeout=120)
        rows = np.random.default_rng(number).integers(0, len(alone), 15)
        for row in rows:
            mine = {name: array[row : row + 1] for name, array in tensors.items()}
            while True:
                status, one, headers = answer_on(
                    connection, "POST", "/v2/models/bundle/infer", infer_body(mine, id=f"{number} {row}")
                )
                if status != 503:
                    break
                assert headers["Retry-After"] == "1"
            assert (status, one["id"]) == (200, f"{number} {row}")
            np.testing.assert_allclose(outputs(one)["probabilities"][0], alone[row], atol=1e-6)
        connection.close()
        return len(rows)

    with ThreadPoolExecutor(32) as pool:
        assert sum(pool.map(client, range(32))) == 32 * 15
    threads = len(list(Path(f"/proc/{server.process.pid}/task").iterdir()))
    assert threads <= 4 + (os.cpu_count() or 1), "one that listens, two workers, the main one, and ONNX Runtime's"


def test_killed_and_slow_clients_harm_nobody(server: Server, cases: Path) -> None:
    body = json.dumps(infer_body(inputs_of(cases / "bert"))).encode()
    head = f"POST /v2/models/bundle/infer HTTP/1.1\r\nHost: {LOOPBACK}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    for _ in range(10):
        with socket.create_connection((LOOPBACK, server.port)) as killed:
            killed.sendall(head + body)
        with socket.create_connection((LOOPBACK, server.port)) as killed:
            killed.sendall(head + body[:1000])
    slow = [socket.create_connection((LOOPBACK, server.port)) for _ in range(20)]
    for each in slow:
        each.sendall(head + body[:10])
    status, told, _ = server.ask("POST", "/v2/models/bundle/infer", body)
    assert (status, len(told["outputs"][0]["data"]) > 0) == (200, True)
    slow[0].sendall(body[10:])
    assert slow[0].recv(20).startswith(b"HTTP/1.1 200")
    for each in slow:
        each.close()


def test_a_full_queue_is_answered_with_503(runner: Path, cases: Path, server: Server) -> None:
    body = infer_body(inputs_of(cases / "bert"))
    with serving(runner, cases / "bert/bundle", "--queue", 1, "--workers", 1) as small, ThreadPoolExecutor(16) as pool:
        found = list(pool.map(lambda _: small.ask("POST", "/v2/models/bundle/infer", body), range(48)))
    statuses = [status for status, _, _ in found]
    assert set(statuses) == {200, 503}
    told, headers = next((told, headers) for status, told, headers in found if status == 503)
    assert told["error"].startswith("too many requests wait (1)")
    assert headers["Retry-After"] == "1"


def test_sigterm_lets_every_request_that_was_begun_be_answered(runner: Path, cases: Path, server: Server) -> None:
    body = json.dumps(infer_body(inputs_of(cases / "bert")))
    answers: list[int] = []
    with serving(runner, cases / "bert/bundle", "--workers", 1) as found:
        connections = [http.client.HTTPConnection(LOOPBACK, found.port, timeout=60) for _ in range(8)]
        for connection in connections:
            connection.putrequest("POST", "/v2/models/bundle/infer")
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body[:5].encode())  # begun, not ended
        assert found.ask("GET", "/v2/health/ready")[0] == 200
        found.process.send_signal(signal.SIGTERM)

        def end(connection: http.client.HTTPConnection) -> None:
            connection.send(body[5:].encode())
            reply = connection.getresponse()
            assert reply.headers["Connection"] == "close"
            answers.append(reply.status)
            json.loads(reply.read())

        threads = [threading.Thread(target=end, args=(connection,)) for connection in connections]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == [200] * 8
        assert found.process.wait(20) == 0
        with pytest.raises(ConnectionError):
            found.ask("GET", "/v2/health/live")


def test_a_second_signal_ends_the_wait(runner: Path, cases: Path, server: Server) -> None:
    last = "stopped; 1 requests were not answered\n"
    with serving(runner, cases / "bert/bundle", last=last) as found:
        never = socket.create_connection((LOOPBACK, found.port))
        never.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        assert found.ask("GET", "/v2/health/live")[0] == 200
        found.process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            found.process.wait(0.3)
        found.process.send_signal(signal.SIGTERM)
        assert found.process.wait(20) == 0
        never.close()


def test_a_prediction_that_runs_does_not_hold_back_the_end(runner: Path, cases: Path, server: Server) -> None:
    rows = 300_000  # each a run of its own: a minute
    inputs = [{"name": name, "datatype": "INT64", "shape": [rows, 1], "data": [1] * rows}
              for name in ("input_ids", "attention_mask")]  # fmt: skip
    last = "stopped; 1 requests were not answered\n"
    with serving(runner, cases / "bert/bundle", "--batch-size", 1, "--threads", 1, last=last) as found:
        asking = http.client.HTTPConnection(LOOPBACK, found.port, timeout=60)
        asking.request("POST", "/v2/models/bundle/infer", json.dumps({"inputs": inputs}))
        time.sleep(1)
        found.process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            found.process.wait(0.3)
        found.process.send_signal(signal.SIGTERM)
        assert found.process.wait(3) == 0
        asking.close()


def test_workers_that_cannot_be_started(runner: Path, cases: Path) -> None:
    gib = 2**30
    limits = f"ulimit -s {gib // 1024} -v {64 * gib // 1024}"  # of 64 GiB of addresses each thread asks for one
    words = f"{runner} {cases / 'bert/bundle'} --serve --port 0 --threads 1 --workers 256"
    done = subprocess.run(["bash", "-c", f"{limits}; exec {words}"], capture_output=True, text=True, check=False)
    refused(done, "cannot start 256 workers (Resource temporarily unavailable); give fewer with --workers")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--serve", "x.npz"), "--serve takes its inputs from requests"),
        (("--serve", "--profile"), "--profile and --serve are given"),
        (("--port", 1), "--port goes with --serve"),
        (("--serve", "--token-file", "nothing"), "cannot read 'nothing'; expected the file of a token"),
        (("--serve", "--port", 65536), "--port is '65536'; expected a whole number from 0 to 65535"),
        (("--serve", "--host", "example.invalid"), "is no address of this machine"),
    ],
)
def test_options_that_are_refused(
    runner: Path, cases: Path, server: Server, words: tuple[Any, ...], message: str
) -> None:
    refused(run(runner, cases / "bert/bundle", *words), message)


def test_a_port_that_is_taken(runner: Path, cases: Path, server: Server) -> None:
    refused(run(runner, cases / "bert/bundle", "--serve", "--port", server.port), "cannot listen on 127.0.0.1, port")
