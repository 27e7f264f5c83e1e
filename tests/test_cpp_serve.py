"""``hydrant-run --serve``: predictions as in Python, limits, errors and SIGTERM."""

import base64
import contextlib
import http.client
import io
import json
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import pytest
from cpp import alike, inputs_of, refused, run
from cpp_server import (
    LOOPBACK,
    Server,
    answer_on,
    binary_body,
    binary_outputs,
    check_fields,
    ids_body,
    infer_body,
    outputs,
    raw,
    serving,
)
from PIL import Image


@pytest.fixture(scope="module")
def server(runner: Path, golden: Path) -> Iterator[Server]:
    if "was built without libmicrohttpd" in run(runner, golden / "bert/bundle", "--serve", "--host", "nowhere").stderr:
        pytest.skip("hydrant-run was built without libmicrohttpd")
    with serving(runner, golden / "bert/bundle") as running:
        yield running


@pytest.fixture(scope="module")
def pictures(runner: Path, golden: Path, server: Server) -> Iterator[Server]:
    """A server of an image model."""
    with serving(runner, golden / "vit-images/bundle") as running:
        yield running


@pytest.mark.parametrize("case", ["bert", "scores", "labels"])
def test_tensors_are_answered_as_in_python_in_both_forms(case: str, runner: Path, golden: Path, server: Server) -> None:
    tensors = inputs_of(golden / case)
    with hydrant.load(golden / case / "bundle", "onnxruntime") as predictor:
        wanted, labels = predictor.predict(tensors), list(predictor.labels)
        python_rows = predictor.rows(wanted, [f"row {index}" for index in range(len(wanted))])
    with serving(runner, golden / case / "bundle") as running:
        status, reply, _ = running.ask("POST", "/v2/models/bundle/infer", infer_body(tensors, id="a 1"))
        assert (status, reply["model_name"], reply["model_version"], reply["id"]) == (200, "bundle", "1", "a 1")
        check_fields(outputs(reply), wanted, labels)
        _, metadata, _ = running.ask("GET", "/v2/models/bundle")
        described = {each["name"]: (each["datatype"], each["shape"][1:]) for each in metadata["outputs"]}
        assert described == {each["name"]: (each["datatype"], each["shape"][1:]) for each in reply["outputs"]}
        assert metadata["parameters"]["labels"] == labels
        status, reply, _ = running.ask("POST", INFER, infer_body(tensors, outputs=[{"name": "logits"}]))
        assert (status, [each["name"] for each in reply["outputs"]]) == (200, ["logits"])
        np.testing.assert_allclose(outputs(reply)["logits"], wanted.logits, rtol=1e-5, atol=1e-5)
        assert running.ask("GET", "/v2/health/ready")[:2] == (200, {"ready": True})
        inputs = {name: array.tolist() for name, array in tensors.items()}
        status, reply, _ = running.ask("POST", "/predict", {"inputs": inputs})
        assert (status, reply["backend"], reply["model"], reply["version"]) == (200, "onnxruntime", "bundle", "1")
        alike(reply["predictions"], python_rows)
        body, length = ids_body(tensors, id="ä", parameters={"binary_data_output": True})
        status, content, headers = running.ask_bytes(INFER, body, length)
        assert status == 200, content
        reply, arrays = binary_outputs(content, headers)
        assert reply["id"] == "ä"
        assert all("parameters" in each for each in reply["outputs"])
        check_fields(arrays, wanted, labels)
        assert [each["datatype"] for each in reply["outputs"]] == [datatype for datatype, _ in described.values()]


def test_a_download_of_the_hub_is_named_after_its_repository(
    runner: Path, golden: Path, server: Server, tmp_path: Path
) -> None:
    revision = tmp_path / "models--user--digits/snapshots/0123abcd"
    bundle = shutil.copytree(golden / "bert/bundle", revision / "hydrant")
    for folder in (bundle, revision):
        words = [str(runner), str(folder), "--serve", "--port", "0"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline().startswith("serving digits on http://")
            process.terminate()
            process.communicate(timeout=60)


def test_images_are_answered_as_in_python(golden: Path, pictures: Server) -> None:
    files = sorted((golden / "vit-images/images").iterdir())
    encoded = [base64.b64encode(file.read_bytes()).decode() for file in files]
    with hydrant.load(golden / "vit-images/bundle", "onnxruntime") as predictor:
        wanted, labels = predictor.predict(files), list(predictor.labels)
    image = {"name": "image", "datatype": "BYTES", "shape": [len(files), 1], "data": encoded}
    status, reply, _ = pictures.ask("POST", "/v2/models/bundle/infer", {"inputs": [image]})
    assert status == 200, reply
    check_fields(outputs(reply), wanted, labels)
    files_as_bytes = {"image": ("BYTES", [len(files)], raw("BYTES", [file.read_bytes() for file in files]))}
    body, length = binary_body(files_as_bytes, parameters={"binary_data_output": True})
    check_fields(binary_outputs(*pictures.ask_bytes(INFER, body, length)[1:])[1], wanted, labels)
    status, reply, _ = pictures.ask("POST", "/predict", {"inputs": encoded, "probabilities": True})
    probabilities = [list(row["probabilities"].values()) for row in reply["predictions"]]
    np.testing.assert_allclose(probabilities, wanted.probabilities, atol=1e-6)
    status, reply, _ = pictures.ask("POST", "/predict", {"inputs": encoded[0]})
    assert (status, len(reply["predictions"])) == (200, 1)
    wrong = [encoded[0], base64.b64encode(b"no image").decode()]
    assert "image input 1" in pictures.refusal(400, "POST", "/predict", {"inputs": wrong})


INFER = "/v2/models/bundle/infer"


def test_tritonclient_reads_every_answer(server: Server, golden: Path, client_python: Path) -> None:
    tensors = {name: array[:5] for name, array in inputs_of(golden / "bert").items()}
    names = ["label", "label_index", "probabilities", "confidence", "energy", "abstain", "prediction_set"]
    ask = {"http": f"{LOOPBACK}:{server.port}", "model": "bundle", "outputs": names,
           "tensors": {name: array.tolist() for name, array in tensors.items()}}  # fmt: skip
    words = [str(client_python), str(Path(__file__).parent / "oip_clients.py"), "runner"]
    done = subprocess.run(words, input=json.dumps(ask), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    reply = json.loads(done.stdout)
    with hydrant.load(golden / "bert/bundle", "onnxruntime") as predictor:
        wanted = predictor.predict(tensors)
        labels = [predictor.labels[index] for index in wanted.label]
    for form in ("json", "binary", "default"):
        assert (reply[form]["label"], reply[form]["label_index"]) == (labels, wanted.label.tolist())
        for name in names[2:]:
            np.testing.assert_allclose(reply[form][name], getattr(wanted, name), atol=1e-6, err_msg=f"{form}: {name}")
    status, message = reply["refused"]
    assert "400" in status and "'scores'" in message


IDS = {"name": "input_ids", "datatype": "INT64", "shape": [1, 2], "data": [1, 2]}
MASK = {**IDS, "name": "attention_mask", "data": [[1, 1]]}


@pytest.mark.parametrize(("body", "words"), [
    (b"[" * 100_000, "nested too deeply"),
    ([], "array"),
    ({"inputs": [{**IDS, "shape": [2**31 - 1] * 8}]}, "which no request can hold"),
    ({"inputs": [{**IDS, "shape": [1, 3]}]}, "[1, 3]"),
    ({"inputs": [{**IDS, "datatype": "FP32", "data": [1e300, 2]}]}, "finite"),
    ({"inputs": [IDS, IDS]}, "twice"),
    ({"inputs": [{**IDS, "data": [10**6, 2]}, MASK]}, "1000000"),
    ({"inputs": [IDS, MASK], "outputs": [{"name": "no"}]}, "'no'"),
])  # fmt: skip
def test_bodies_that_are_refused(server: Server, body: Any, words: str) -> None:
    assert words in server.refusal(400, "POST", INFER, body)


@pytest.mark.parametrize(("status", "method", "path", "headers"), [
    (400, "POST", "/predict", {}),
    (404, "GET", "/../../etc/passwd", {}),
    (405, "DELETE", "/v2", {}),
    (415, "POST", "/predict", {"Content-Type": "image/png"}),
    (415, "POST", "/predict", {"Content-Encoding": "gzip"}),
])  # fmt: skip
def test_requests_that_are_refused(
    server: Server, status: int, method: str, path: str, headers: dict[str, str]
) -> None:
    body = None if method == "GET" else {"inputs": ["a text"]}
    assert server.refusal(status, method, path, body, **headers)


@pytest.mark.parametrize(
    ("size", "tail", "length"), [(16, 15, None), (-16, 16, None), (2**64 + 16, 16, None), (16, 16, 10**17)]
)
def test_malformed_binary_bodies_are_refused(server: Server, size: Any, tail: int, length: object) -> None:
    described = {"name": "input_ids", "datatype": "INT64", "shape": [1, 2], "parameters": {"binary_data_size": size}}
    head = json.dumps({"inputs": [described]}).encode()
    status, content, _ = server.ask_bytes(INFER, head + bytes(tail), len(head) if length is None else length)
    assert (status, list(json.loads(content))) == (400, ["error"])


def test_pages_of_other_sites_are_refused(server: Server) -> None:
    own = f"127.0.0.1:{server.port}"
    assert server.ask("GET", "/v2", Origin=f"http://{own}")[0] == 200
    for origin in ("https://example.com", f"http://{own}.example.com"):
        assert "another site" in server.refusal(403, "GET", "/v2", Origin=origin)
    for name in ("rebound.example", "127.0.0.1.rebound.example"):
        pointed = {"Host": f"{name}:{server.port}", "Origin": f"http://{name}:{server.port}"}
        assert "another site" in server.refusal(403, "POST", "/predict", {"inputs": []}, **pointed)
        assert server.refusal(403, "GET", "/v2", Host=pointed["Host"]), "without an origin, from the own site"
    for host in (f"LocalHost:{server.port}", "[::1]", "127.1.2.3"):
        assert server.ask("GET", "/v2", Host=host)[0] == 200


SECRET = "s3cret-of-32-characters-or-so!"


def test_the_token_is_checked_before_the_body(runner: Path, golden: Path, server: Server, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"  {SECRET}\n")
    body = infer_body(inputs_of(golden / "bert"))
    with serving(runner, golden / "bert/bundle", "--token-file", tmp_path / "token", "--max-bytes", 2**20) as guarded:
        assert guarded.ask("GET", "/v2/health/ready")[0] == 200
        for wrong in ("", f"Basic {SECRET}", f"Bearer {SECRET}x", f"Bearer {SECRET[:-1]}"):
            status, reply, headers = guarded.ask("GET", "/v2", Authorization=wrong)
            assert (status, headers["WWW-Authenticate"]) == (401, "Bearer")
            assert SECRET not in reply["error"]
        assert "token" in guarded.refusal(401, "POST", "/predict", b"x" * (6 * 2**20))  # discarded
        right = {"Authorization": f"bearer {SECRET}"}
        status, reply, _ = guarded.ask("POST", INFER, body, **right)
        assert status == 200
        named = {**right, "Host": "models.example"}
        assert guarded.ask("GET", "/v2", **named, Origin="https://models.example")[0] == 200
        assert "another site" in guarded.refusal(403, "GET", "/v2", **named, Origin="https://example.com")
        assert memory_of(guarded) < 200_000
    assert server.ask("POST", INFER, body)[1]["outputs"] == reply["outputs"]


def memory_of(server: Server) -> int:
    """Peak memory of a server, kB."""
    return int(Path(f"/proc/{server.process.pid}/status").read_text().split("VmHWM:")[1].split()[0])


def test_bodies_that_are_too_large(runner: Path, golden: Path, server: Server) -> None:
    with serving(runner, golden / "bert/bundle", "--max-bytes", 2**20, "--max-inputs", 4) as small:
        assert "is not JSON" in small.refusal(400, "POST", "/predict", b" " * 2**20)
        assert "1048576" in small.refusal(413, "POST", "/predict", b" " * (2**20 + 1))
        connection = http.client.HTTPConnection(LOOPBACK, small.port, timeout=60)
        connection.request("POST", "/predict", (b" " * 2**16 for _ in range(40)))  # in chunks, of no known length
        assert connection.getresponse().status == 413
        connection.close()
        body = b'{"inputs":[' + b",".join([b'""'] * (2**20 // 3 - 10)) + b"]}"
        assert f"{2**20 // 3 - 10} inputs" in small.refusal(413, "POST", "/predict", body)
        five = {name: array[:5] for name, array in inputs_of(golden / "bert").items()}
        assert "5 inputs" in small.refusal(413, "POST", INFER, infer_body(five))
        assert memory_of(small) < 200_000


def test_pictures_of_many_pixels_are_refused_before_they_are_decoded(pictures: Server) -> None:
    for width, height, kind in ((9000, 9000, "png"), (9000, 9000, "jpeg"), (65_536, 1, "png")):
        file = io.BytesIO()
        Image.new("L" if kind == "jpeg" else "1", (width, height)).save(file, kind)
        encoded = base64.b64encode(file.getvalue()).decode()
        assert "pixels" in pictures.refusal(413, "POST", "/predict", {"inputs": [encoded]})
    assert memory_of(pictures) < 200_000


def test_unfinished_bodies_take_bounded_memory(runner: Path, golden: Path, server: Server) -> None:
    most = 2**20
    head = f"POST /predict HTTP/1.1\r\nHost: {LOOPBACK}\r\nContent-Length: {most}\r\n\r\n".encode()
    with serving(runner, golden / "bert/bundle", "--max-bytes", most) as small:
        held = [socket.create_connection((LOOPBACK, small.port), timeout=60) for _ in range(16)]
        for each in held:
            each.sendall(head + b" " * (most - 1))
        wait_until_read(small.port)
        status, reply, headers = small.ask("POST", "/predict", b" " * most)
        assert status == 503
        assert reply["error"].startswith("bodies of other requests")
        assert headers["Retry-After"] == "1"
        assert small.ask("GET", "/v2/health/ready")[0] == 200
        held[0].sendall(b" ")
        assert held[0].recv(20).startswith(b"HTTP/1.1 400")
        for each in held:
            each.close()
        assert "is not JSON" in first_accepted(small, b" " * most)[1]["error"]
        assert memory_of(small) < 200_000


def test_unread_long_responses_take_bounded_memory(runner: Path, golden: Path, server: Server) -> None:
    def body(rows: int) -> bytes:
        inputs = {name: [[1]] * rows for name in ("input_ids", "attention_mask", "token_type_ids")}
        return json.dumps({"inputs": inputs}, separators=(",", ":")).encode()

    many, some = body(40_000), body(1000)  # 12 MB of answer, more than a socket buffers, and 300 kB
    head = f"POST /predict HTTP/1.1\r\nHost: {LOOPBACK}\r\nContent-Length: {len(many)}\r\n\r\n".encode()
    options = ("--max-bytes", len(many), "--max-inputs", 40_000)
    with serving(runner, golden / "bert/bundle", *options) as running, socket.socket() as slow:
        slow.settimeout(60)
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((LOOPBACK, running.port))
        slow.sendall(head + many)
        assert slow.recv(15) == b"HTTP/1.1 200 OK"  # reads no more
        status, reply, headers = running.ask("POST", "/predict", some)
        assert status == 503
        assert "long responses" in reply["error"]
        assert headers["Retry-After"] == "1"
        assert running.ask("POST", "/predict", body(10))[0] == 200
        slow.close()
        assert len(first_accepted(running, some)[1]["predictions"]) == 1000


def first_accepted(server: Server, body: bytes) -> tuple[int, Any, dict[str, str]]:
    """The first response without status 503."""
    end = time.monotonic() + 30
    while (answer := server.ask("POST", "/predict", body))[0] == 503 and time.monotonic() < end:
        time.sleep(0.05)
    return answer


def wait_until_read(port: int) -> None:
    """Wait until a server has read everything."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        queues = [row[4] for row in rows if f":{port:04X}" in row[1] + row[2]]
        if set(queues) == {"00000000:00000000"}:
            return
        time.sleep(0.05)
    raise AssertionError(queues)


@pytest.mark.parametrize("headers", [
    b"Content-Length: 2\r\nContent-Length: 3\r\n",
    b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
    b"Content-Length : 2\r\n",
    b"Content-Length:\r\n 2\r\n",
])  # fmt: skip
def test_ambiguous_framing_is_refused(server: Server, headers: bytes) -> None:
    with socket.create_connection((LOOPBACK, server.port), timeout=60) as raw_:
        raw_.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n2\r\n{}\r\n0\r\n\r\n")
        with raw_.makefile("rb") as stream:
            head, _, _ = stream.read().partition(b"\r\n\r\n")  # to the end: nothing else is answered
    assert head.startswith(b"HTTP/1.1 400 ") and b"Connection: close" in head


def test_malformed_http_does_not_stop_the_server(server: Server) -> None:
    host = b"Host: localhost\r\n"
    odd = [bytes(range(256)) * 4, b"GET /v2 HTTP/9.9\r\n" + host + b"\r\n",
           b"POST /predict HTTP/1.1\r\n" + host + b"Content-Length: -1\r\n\r\n{}",
           b"POST /predict HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
           b"GET /" + b"a" * 50_000 + b" HTTP/1.1\r\n" + host + b"\r\n"]  # fmt: skip
    for data in odd:
        with (
            socket.create_connection((LOOPBACK, server.port), timeout=60) as raw_,
            contextlib.suppress(ConnectionError),
        ):
            raw_.sendall(data)
            with raw_.makefile("rb") as stream:
                assert stream.read().startswith((b"HTTP/1.1 4", b"HTTP/1.1 5"))
        assert server.ask("GET", "/v2/health/ready")[0] == 200


def test_clients_that_take_too_long_are_closed(runner: Path, golden: Path, server: Server) -> None:
    head = f"POST /predict HTTP/1.1\r\nHost: {LOOPBACK}\r\nContent-Length: 100\r\n\r\n".encode()
    options = ("--transfer-timeout", 1, "--batch-size", 1, "--threads", 1, "--max-inputs", 2500)
    with serving(runner, golden / "bert/bundle", *options) as running:
        slow = [socket.create_connection((LOOPBACK, running.port), timeout=60) for _ in range(3)]
        started, closed = time.monotonic(), {}
        slow[1].sendall(b"GET /v2 HTTP/1.1\r\n")
        slow[2].sendall(head)
        while len(closed) < 3 and time.monotonic() < started + 30:  # each moves all the time
            for index, (each, byte) in enumerate(zip(slow, (b"G", b"A", b" "), strict=True)):
                if index not in closed:
                    try:
                        each.sendall(byte)
                        each.settimeout(0.05)
                        closed[index] = each.recv(1)
                    except TimeoutError:
                        pass
                    except ConnectionError:
                        closed[index] = b""
        assert closed == {0: b"", 1: b"", 2: b""}
        assert time.monotonic() > started + 1
        for each in slow:
            each.close()
        idle = http.client.HTTPConnection(LOOPBACK, running.port, timeout=60)
        assert answer_on(idle, "GET", "/v2")[0] == 200
        rested = time.monotonic()
        ids = np.full((2500, 1), 3)  # the server's own time does not count
        assert running.ask("POST", INFER, infer_body({"input_ids": ids, "attention_mask": np.ones_like(ids)}))[0] == 200
        time.sleep(max(0.0, rested + 2.5 - time.monotonic()))
        assert answer_on(idle, "GET", "/v2")[0] == 200, "connections may stay idle longer between requests"
        idle.close()


def test_many_clients_at_once_each_get_their_own_answer(server: Server, golden: Path) -> None:
    tensors = inputs_of(golden / "bert")
    _, reply, _ = server.ask("POST", "/v2/models/bundle/infer", infer_body(tensors))
    alone = outputs(reply)["probabilities"]

    def client(number: int) -> int:
        connection = http.client.HTTPConnection(LOOPBACK, server.port, timeout=120)
        rows = np.random.default_rng(number).integers(0, len(alone), 8)
        for row in rows:
            mine = {name: array[row : row + 1] for name, array in tensors.items()}
            request = infer_body(mine, id=f"{number} {row}")
            while (answer := answer_on(connection, "POST", INFER, request))[0] == 503:
                assert answer[2]["Retry-After"] == "1"
            status, one, _ = answer
            assert (status, one["id"]) == (200, f"{number} {row}")
            np.testing.assert_allclose(outputs(one)["probabilities"][0], alone[row], atol=1e-6)
        connection.close()
        return len(rows)

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(client, range(16))) == 16 * 8


def test_a_full_queue_is_answered_with_503(runner: Path, golden: Path, server: Server) -> None:
    body = infer_body(inputs_of(golden / "bert"))
    with serving(runner, golden / "bert/bundle", "--queue", 1, "--workers", 1) as small, ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda _: small.ask("POST", "/v2/models/bundle/infer", body), range(48)))
    statuses = [status for status, _, _ in replies]
    assert set(statuses) == {200, 503}
    reply, headers = next((reply, headers) for status, reply, headers in replies if status == 503)
    assert reply["error"].startswith("too many waiting requests (1)")
    assert headers["Retry-After"] == "1"


def test_sigterm_finishes_open_requests(runner: Path, golden: Path, server: Server) -> None:
    body = json.dumps(infer_body(inputs_of(golden / "bert")))
    with serving(runner, golden / "bert/bundle", "--workers", 1) as running:
        connections = [http.client.HTTPConnection(LOOPBACK, running.port, timeout=60) for _ in range(8)]
        for connection in connections:
            connection.putrequest("POST", "/v2/models/bundle/infer")
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body[:5].encode())  # unfinished
        assert running.ask("GET", "/v2/health/ready")[0] == 200
        running.process.send_signal(signal.SIGTERM)

        def end(connection: http.client.HTTPConnection) -> int:
            connection.send(body[5:].encode())
            reply = connection.getresponse()
            assert reply.headers["Connection"] == "close"
            json.loads(reply.read())
            return reply.status

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(end, connections)) == [200] * 8
        assert running.process.wait(20) == 0
        with pytest.raises(ConnectionError):
            running.ask("GET", "/v2/health/live")


def test_unusable_tokens_and_ports(runner: Path, golden: Path, server: Server, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("two words here")
    done = run(runner, golden / "bert/bundle", "--serve", "--token-file", tmp_path / "token")
    assert (done.returncode, "two words here" in done.stderr) == (2, False)
    for words, name in (
        (("--serve", "--port", server.port), "127.0.0.1"),
        (("--serve", "x.npz"), "--serve"),
        (("--port", 1), "--port"),
        (("--serve", "--token-file", "nothing"), "nothing"),
    ):
        refused(run(runner, golden / "bert/bundle", *words), name)
