"""``hydrant-run --serve`` as a process, and clients for it."""

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
"""NumPy types of datatypes in binary form."""


class Server:
    """A running ``hydrant-run --serve``."""

    def __init__(self, process: subprocess.Popen[str], line: str) -> None:
        self.process, self.line = process, line
        self.port = int(line.partition(" (")[0].rsplit(":", 1)[1])

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, dict[str, str]]:
        """Status, decoded JSON and headers of one request on a new connection."""
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=60)
        try:
            return answer_on(connection, method, path, body, **headers)
        finally:
            connection.close()

    def ask_bytes(self, path: str, body: bytes, length: object = None) -> tuple[int, bytes, dict[str, str]]:
        """Status, bytes and headers of a ``POST``; ``length``: of the JSON in the body."""
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=60)
        try:
            connection.request("POST", path, body, {} if length is None else {HEADER: str(length)})
            reply = connection.getresponse()
            return reply.status, reply.read(), dict(reply.headers)
        finally:
            connection.close()

    def refusal(self, status: int, method: str, path: str, body: Any = None, **headers: str) -> str:
        """The error message of a rejected request."""
        actual, reply, _ = self.ask(method, path, body, **headers)
        assert (actual, list(reply)) == (status, ["error"]), reply
        assert "\n" not in reply["error"]
        return str(reply["error"])


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
    """A server on a free port, stopped at the end; ``last``: its standard error."""
    words = [str(word) for word in (runner, bundle, "--serve", "--port", 0, *options)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
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


def outputs(reply: dict[str, Any]) -> dict[str, np.ndarray]:
    """The outputs of a response as arrays."""
    return {each["name"]: np.array(each["data"]).reshape(each["shape"]) for each in reply["outputs"]}


def check_fields(arrays: dict[str, np.ndarray], wanted: hydrant.Prediction, labels: list[str]) -> None:
    """Assert all fields of Python's prediction, and no others except label names."""
    fields = wanted.arrays
    expected = set(fields) | ({"label_index"} if "label" in fields else set())
    assert set(arrays) == expected
    for name, array in fields.items():
        if name == "label":
            np.testing.assert_array_equal(arrays["label_index"], array)
            assert arrays["label"].tolist() == [labels[index] for index in array]
        else:
            np.testing.assert_allclose(arrays[name], array, atol=1e-6, err_msg=name)
            assert (arrays[name].dtype == bool) == (array.dtype == bool)


def raw(datatype: str, values: Any) -> bytes:
    """A tensor in binary form."""
    if datatype == "BYTES":
        return b"".join(struct.pack("<I", len(item)) + item for item in values)
    return np.asarray(values).astype(DTYPES[datatype]).tobytes()


def binary_body(tensors: dict[str, tuple[str, list[int], bytes]], **more: Any) -> tuple[bytes, int]:
    """A body of binary tensors (datatype, shape, bytes), and the length of its JSON."""
    inputs = [
        {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(data)}}
        for name, (datatype, shape, data) in tensors.items()
    ]
    head = json.dumps({"inputs": inputs, **more}).encode()
    return head + b"".join(data for _, _, data in tensors.values()), len(head)


def ids_body(tensors: dict[str, np.ndarray], **more: Any) -> tuple[bytes, int]:
    """The same for token ids."""
    ids = {name: ("INT64", list(array.shape), raw("INT64", array)) for name, array in tensors.items()}
    return binary_body(ids, **more)


def binary_outputs(content: bytes, headers: dict[str, str]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The JSON of a response, and its outputs as arrays, in either form."""
    size = int(headers[HEADER])
    assert headers["Content-Type"] == "application/octet-stream"
    reply, rest, arrays = json.loads(content[:size]), content[size:], {}
    for each in reply["outputs"]:
        assert ("data" in each) != ("parameters" in each)
        if "data" in each:
            values = np.array(each["data"])
        else:
            part, rest = np.split(np.frombuffer(rest, np.uint8), [each["parameters"]["binary_data_size"]])
            values, rest = values_of(each["datatype"], part.tobytes()), rest.tobytes()
        arrays[each["name"]] = values.reshape(each["shape"])
    assert rest == b""
    return reply, arrays


def values_of(datatype: str, data: bytes) -> np.ndarray:
    """Decode binary values; texts for ``BYTES``."""
    if datatype != "BYTES":
        return np.frombuffer(data, DTYPES[datatype])
    texts = []
    while data:
        end = 4 + struct.unpack("<I", data[:4])[0]
        texts.append(data[4:end].decode())
        data = data[end:]
    return np.array(texts)
