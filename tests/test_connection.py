"""Limits of one connection: slow, endless or malformed requests, and clients that do not read."""

import asyncio
import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvicorn
from hydrant.serving.connection import MAX_HEAD, MAX_PIPELINED, limited_protocol

SECONDS = 0.4
LARGE = 16 * 2**20
REQUEST = b"GET /%b HTTP/1.1\r\nhost: localhost\r\n\r\n"
BODY = b"POST /%b HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n"

DISCONNECTED = threading.Event()
"""Set once the client of the last request to /leaves has disconnected."""


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Answers with its path; the path also selects waiting, reading the body first, or a long answer."""
    path = scope["path"][1:]
    if path == "leaves":
        body = asyncio.create_task(receive())
        await asyncio.sleep(0)
        time.sleep(SECONDS / 2)  # the whole body arrives meanwhile
        while (await body)["more_body"]:
            body = asyncio.create_task(receive())
        while (await receive())["type"] != "http.disconnect":
            pass
        DISCONNECTED.set()
        return
    if path.startswith("slow"):
        await asyncio.sleep(3 * SECONDS)
    while path.startswith("read") and (message := await receive())["type"] == "http.request" and message["more_body"]:
        pass
    body = b"x" * LARGE if path == "large" else path.encode()
    while path == "echo" and (message := await receive())["type"] == "http.request":
        body += b"(" + message["body"] + b")" if message["body"] else b""
        if not message["more_body"]:
            break
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[int, uvicorn.Server]]:
    """The port of a server, and the server."""
    with socket.create_server(("127.0.0.1", 0)) as port:
        config = uvicorn.Config(
            app, http=limited_protocol(SECONDS), ws="none", lifespan="off", log_config=None,
            access_log=False, timeout_keep_alive=1,
        )  # fmt: skip
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [port]})
        thread.start()
        yield port.getsockname()[1], server
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


Server = tuple[int, uvicorn.Server]


@contextlib.contextmanager
def connected(server: Server, room: int = 0) -> Iterator[socket.socket]:
    with socket.socket() as client:
        if room:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
        client.settimeout(20)
        client.connect(("127.0.0.1", server[0]))
        yield client


def rest_of(client: socket.socket) -> bytes:
    """All bytes until the end of the connection."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while piece := client.recv(1 << 20):
            received += piece
    return received


def answered(client: socket.socket, path: bytes) -> None:
    """Read an answer, and check that it belongs to a path."""
    received = b""
    while not received.endswith(b"\r\n\r\n" + path):
        piece = client.recv(1000)
        assert piece, received
        received += piece
    assert paths(received) == [path]


def until(true: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def paths(answers: bytes) -> list[bytes]:
    """The bodies of answers, all of status 200."""
    parts = answers.split(b"HTTP/1.1 ")
    assert parts[0] == b""
    assert all(part.startswith(b"200 ") for part in parts[1:]), answers[-300:]
    return [part.partition(b"\r\n\r\n")[2] for part in parts[1:]]


def test_pipelined_requests_are_limited_and_answered(server: Server) -> None:
    with connected(server) as client:
        begun = time.process_time()
        with contextlib.suppress(ConnectionError):
            client.sendall(REQUEST % b"slow" + (REQUEST % b"a") * 5000)
        assert paths(rest_of(client)) == [b"slow"] + [b"a"] * (MAX_PIPELINED - 1)
        assert time.process_time() - begun < 5
    with connected(server) as client:  # batches within the limit are all answered
        for _ in range(3):
            client.sendall((REQUEST % b"a") * MAX_PIPELINED)
            received = b""
            while received.count(b"HTTP/1.1 200") < MAX_PIPELINED or not received.endswith(b"\r\n\r\na"):
                received += client.recv(1 << 16)
            assert paths(received) == [b"a"] * MAX_PIPELINED


@pytest.mark.parametrize("behind", [b"nonsense\r\n\r\n", b"POST /x HTTP/1.1\r\nhos", b"a: b\r\n" * (MAX_HEAD // 3)])
def test_an_error_never_replaces_the_answer_of_another_request(server: Server, behind: bytes) -> None:
    with connected(server) as client:
        with contextlib.suppress(ConnectionError):
            client.sendall(REQUEST % b"a" + REQUEST % b"slow" + behind)
        assert paths(rest_of(client)) == [b"a", b"slow"]


def test_a_malformed_request_alone_gets_one_error(server: Server) -> None:
    chunked = b"POST /read HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    for sent, status in ((b"nonsense\r\n\r\n", b"400"), (REQUEST[:-2], b"408"), (chunked + b"zz\r\n", b"400")):
        with connected(server) as client:
            client.sendall(sent)
            answer = rest_of(client)
            assert answer.startswith(b"HTTP/1.1 " + status)
            assert answer.count(b"HTTP/1.1 4") == answer.count(b'{"error": ') == 1


def test_the_rest_of_a_rejected_body_is_discarded_and_must_arrive(server: Server) -> None:
    with connected(server) as client:
        client.sendall(BODY % b"early")
        answered(client, b"early")
        client.sendall(b"01234" + b"56789" + REQUEST % b"next")
        answered(client, b"next")
        client.sendall(BODY % b"early")
        answered(client, b"early")
        begun = time.monotonic()
        client.sendall(b"0123")
        assert rest_of(client) == b"", "no second answer to the same request"
        assert time.monotonic() - begun < 5


@pytest.mark.parametrize("endless", [b"0\r\nx: ", b"0\r\n", b"5;"])
def test_chunk_sizes_and_trailers_are_bounded(server: Server, endless: bytes) -> None:
    head = b"POST /read HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n"
    line = b"a: b\r\n" if endless == b"0\r\n" else b"abcdef"
    with connected(server) as client:
        client.sendall(head + endless)
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 200 * MAX_HEAD:
                client.sendall(line * 4096)
                sent += len(line) * 4096
        answer = rest_of(client)
        assert sent < 200 * MAX_HEAD
        assert answer.count(b"HTTP/1.1 4") <= 1
        assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")


def test_a_client_that_does_not_read_is_disconnected_but_not_a_slow_one(server: Server) -> None:
    gone = len(server[1].server_state.connections)
    with connected(server, room=4096) as client:
        client.sendall((REQUEST % b"large") * 2)
        until(lambda: len(server[1].server_state.connections) > gone)
        until(lambda: len(server[1].server_state.connections) == gone)
        assert rest_of(client).count(b"x" * 1000) < 2 * LARGE // 1000
    with connected(server) as client:
        client.sendall(REQUEST % b"large")
        begun, received = time.monotonic(), 0
        while received < LARGE:
            piece = client.recv(1 << 18)
            assert piece
            received += len(piece)
            time.sleep(0.01)
        assert time.monotonic() - begun > SECONDS


@pytest.mark.parametrize("half", [False, True])
def test_a_disconnect_after_a_whole_body_is_detected(server: Server, half: bool) -> None:
    """Half-closed connections count as disconnected: the server cannot distinguish them."""
    DISCONNECTED.clear()
    with connected(server) as client:
        client.sendall(b"POST /leaves HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100000\r\n\r\n")
        time.sleep(SECONDS / 4)
        client.sendall(b"x" * 100_000)
        time.sleep(SECONDS)
        assert not DISCONNECTED.is_set()
        if half:
            client.shutdown(socket.SHUT_WR)
            assert client.recv(1) == b""
            assert DISCONNECTED.wait(3 * SECONDS)
    assert DISCONNECTED.wait(3 * SECONDS)


UPGRADE = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
"""Headers of Java clients that accept HTTP/2 answers."""
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.mark.parametrize("pieces", [1, 2, 100], ids=["at-once", "head-first", "in-pieces"])
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
def test_an_upgrade_request_keeps_its_body(server: Server, pieces: int, chunked: bool) -> None:
    length = b"transfer-encoding: chunked" if chunked else b"content-length: %d" % len(SMUGGLED)
    head = b"POST /echo HTTP/1.1\r\nhost: localhost\r\n" + UPGRADE + length + b"\r\n\r\n"
    body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED) if chunked else SMUGGLED
    last = b"GET /last HTTP/1.1\r\nhost: localhost\r\nconnection: Close, upgrade\r\nupgrade: websocket\r\n\r\n"
    whole = head + body + REQUEST % b"next" + last
    cuts = {1: [], 2: [len(head)], 100: list(range(7, len(whole), 7))}[pieces]
    with connected(server) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for begin, end in itertools.pairwise([0, *cuts, len(whole)]):
            client.sendall(whole[begin:end])
            time.sleep(0.3 * SECONDS if pieces == 2 else 0)
        answers = rest_of(client)
    echoed = b"echo(" + SMUGGLED + b")"
    assert paths(answers.replace(b")(", b"")) == [echoed, b"next", b"last"], "the body may be read in parts"


def test_no_tunnel_is_opened(server: Server) -> None:
    with connected(server) as client:
        client.sendall(b"CONNECT example.com:443 HTTP/1.1\r\nhost: example.com\r\n\r\n" + SMUGGLED)
        answers = rest_of(client)
    assert answers.startswith(b"HTTP/1.1 501 Not Implemented\r\n")
    assert answers.count(b"HTTP/1.1") == 1
