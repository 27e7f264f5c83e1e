"""``hydrant-run --serve`` as a process of its own, and what asks it."""

from __future__ import annotations

import http.client
import json
import signal
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hydrant
import numpy as np

LOOPBACK = "127.0.0.1"
HEADER = "Inference-Header-Content-Length"
DTYPES = {"BOOL": "?", "INT64": "<i8", "FP32": "<f4"}
"""Of some datatypes in binary form."""


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

    def ask_bytes(self, path: str, body: bytes, length: object = None) -> tuple[int, bytes, dict[str, str]]:
        """Status, bytes and headers of an answer to ``POST``; ``length`` is that of the JSON in the body."""
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=60)
        try:
            connection.request("POST", path, body, {} if length is None else {HEADER: str(length)})
            reply = connection.getresponse()
            return reply.status, reply.read(), dict(reply.headers)
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
    """A server on a port of the system's choice, stopped at the end; ``last``: what it says on standard error."""
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


def infer_body(tensors: dict[str, np.ndarray], **more: Any) -> dict[str, Any]:
    inputs = [
        {"name": name, "datatype": "INT64", "shape": list(array.shape), "data": array.tolist()}
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


def raw(datatype: str, values: Any) -> bytes:
    """A tensor in binary form."""
    if datatype == "BYTES":
        return b"".join(struct.pack("<I", len(item)) + item for item in values)
    return np.asarray(values).astype(DTYPES[datatype]).tobytes()


def binary_body(tensors: dict[str, tuple[str, list[int], bytes]], **more: Any) -> tuple[bytes, int]:
    """A body of tensors in binary form, each its datatype, shape and bytes; and the length of its JSON."""
    inputs = [
        {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(data)}}
        for name, (datatype, shape, data) in tensors.items()
    ]
    head = json.dumps({"inputs": inputs, **more}).encode()
    return head + b"".join(data for _, _, data in tensors.values()), len(head)


def ids_body(tensors: dict[str, np.ndarray], **more: Any) -> tuple[bytes, int]:
    """The same for token ids."""
    given = {name: ("INT64", list(array.shape), raw("INT64", array)) for name, array in tensors.items()}
    return binary_body(given, **more)


def binary_outputs(content: bytes, headers: dict[str, str]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The JSON of an answer, and its outputs as arrays: those in binary form, and those that are not."""
    size = int(headers[HEADER])
    assert headers["Content-Type"] == "application/octet-stream"
    told, rest, found = json.loads(content[:size]), content[size:], {}
    for each in told["outputs"]:
        assert ("data" in each) != ("parameters" in each)
        if "data" in each:
            values = np.array(each["data"])
        else:
            part, rest = np.split(np.frombuffer(rest, np.uint8), [each["parameters"]["binary_data_size"]])
            values, rest = values_of(each["datatype"], part.tobytes()), rest.tobytes()
        found[each["name"]] = values.reshape(each["shape"])
    assert rest == b""
    return told, found


def values_of(datatype: str, data: bytes) -> np.ndarray:
    """What stands in binary form; texts of ``BYTES``."""
    if datatype != "BYTES":
        return np.frombuffer(data, DTYPES[datatype])
    texts = []
    while data:
        end = 4 + struct.unpack("<I", data[:4])[0]
        texts.append(data[4:end].decode())
        data = data[end:]
    return np.array(texts)
