"""``hydrant-run --serve``: the same answers as in Python over HTTP, bounded, with one form of error, until SIGTERM."""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hydrant
import numpy as np
import pytest
from cpp import inputs_of, refused, run
from cpp_server import (
    HEADER,
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
from hydrant.errors import InputError
from hydrant.serving.datatypes import Tensor, from_values, to_bytes
from hydrant.serving.oip import inputs_of as inputs_of_request
from hydrant.serving.oip import read_infer
from hydrant.serving.refusals import ServeError
from PIL import Image

KINDS = ("FP16", "BF16", "FP32", "FP64")
MOST_KB = 450_000
"""That a server of a small model takes for one body of the largest size: fifty times 8 MiB, and itself."""


@pytest.fixture(scope="module")
def cases(golden: Path) -> Path:
    """Bundles of every task but tags, which nothing here changes."""
    return golden


@pytest.fixture(scope="module")
def server(runner: Path, cases: Path) -> Iterator[Server]:
    if "was built without libmicrohttpd" in run(runner, cases / "bert/bundle", "--serve", "--host", "nowhere").stderr:
        pytest.skip("hydrant-run was built without libmicrohttpd")
    with serving(runner, cases / "bert/bundle") as found:
        yield found


@pytest.fixture(scope="module")
def pictures(runner: Path, cases: Path, server: Server) -> Iterator[Server]:
    """A server of a model of images."""
    with serving(runner, cases / "vit-images/bundle") as found:
        yield found


@pytest.mark.parametrize("case", ["bert", "scores", "labels"])
def test_tensors_are_answered_as_in_python_in_both_forms(case: str, runner: Path, cases: Path, server: Server) -> None:
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
        assert (told["model"], told["version"]) == ("bundle", "1")
        for mine, theirs in zip(told["predictions"], python_rows, strict=True):
            assert list(mine) == list(theirs)
            for key, value in theirs.items():
                assert mine[key] == (pytest.approx(value, abs=1e-6) if isinstance(value, float) else value) or (
                    key == "labels"
                ), key
        check_binary(found, tensors, wanted, labels)


def check_binary(found: Server, tensors: dict[str, np.ndarray], wanted: hydrant.Prediction, labels: list[str]) -> None:
    """The same in binary form."""
    body, length = ids_body(tensors, id="ä", parameters={"binary_data_output": True})
    status, content, headers = found.ask_bytes(INFER, body, length)
    assert status == 200, content
    told, arrays = binary_outputs(content, headers)
    assert (told["model_name"], told["model_version"], told["id"]) == ("bundle", "1", "ä")
    assert all("parameters" in each for each in told["outputs"])
    check_fields(arrays, wanted, labels)
    described = {each["name"]: each["datatype"] for each in found.ask("GET", "/v2/models/bundle")[1]["outputs"]}
    assert {each["name"]: each["datatype"] for each in told["outputs"]} == described


def test_images_are_answered_as_in_python(cases: Path, pictures: Server) -> None:
    files = sorted((cases / "vit-images/images").iterdir())
    encoded = [base64.b64encode(file.read_bytes()).decode() for file in files]
    with hydrant.load(cases / "vit-images/bundle", "onnxruntime") as predictor:
        wanted, labels = predictor.predict(files), list(predictor.labels)
    image = {"name": "image", "datatype": "BYTES", "shape": [len(files), 1], "data": encoded}
    status, told, _ = pictures.ask("POST", "/v2/models/bundle/infer", {"inputs": [image]})
    assert status == 200, told
    check_fields(outputs(told), wanted, labels)
    status, told, _ = pictures.ask("POST", "/predict", {"inputs": encoded, "probabilities": True})
    rows = told["predictions"]
    np.testing.assert_allclose([list(row["probabilities"].values()) for row in rows], wanted.probabilities, atol=1e-6)
    assert rows[1]["input"] == "image 1"
    _, metadata, _ = pictures.ask("GET", "/v2/models/bundle")
    assert metadata["inputs"] == [{"name": "image", "datatype": "BYTES", "shape": [-1]}]
    assert "not base64" in pictures.refusal(400, "POST", "/predict", {"inputs": ["no image!"]})
    assert "cannot read image input 1" in pictures.refusal(
        400, "POST", "/predict", {"inputs": [encoded[0], base64.b64encode(b"no image").decode()]}
    )


def test_what_it_says_of_itself(server: Server) -> None:
    assert server.ask("GET", "/v2/health/live")[:2] == (200, {"live": True})
    assert server.ask("GET", "/v2/health/ready")[:2] == (200, {"ready": True})
    assert server.ask("GET", "/v2")[:2] == (
        200,
        {"name": "hydrant", "version": hydrant.__version__, "extensions": ["binary_tensor_data"]},
    )
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


INFER = "/v2/models/bundle/infer"


def test_each_output_says_in_which_form_it_comes(server: Server, cases: Path) -> None:
    tensors = {name: array[:3] for name, array in inputs_of(cases / "bert").items()}
    plain = outputs(server.ask("POST", INFER, infer_body(tensors))[1])
    wanted = [
        {"name": "label", "parameters": {"binary_data": True}},
        {"name": "energy"},
        {"name": "abstain", "parameters": {"binary_data": None}},
        {"name": "confidence", "parameters": {"binary_data": False}},
    ]
    for usual, binary in ((False, {"label"}), (True, {"label", "energy", "abstain"})):
        more = {"outputs": wanted, "parameters": {"binary_data_output": usual}}
        for body, length in (ids_body(tensors, **more), (json.dumps(infer_body(tensors, **more)).encode(), None)):
            _, content, headers = server.ask_bytes(INFER, body, length)
            told, arrays = binary_outputs(content, headers)
            assert list(arrays) == [each["name"] for each in wanted]
            assert {each["name"] for each in told["outputs"] if "parameters" in each} == binary
            for name, array in arrays.items():
                np.testing.assert_array_equal(array, plain[name].astype(array.dtype), err_msg=name)
    body, length = ids_body(tensors)
    _, content, headers = server.ask_bytes(INFER, body, length)
    assert HEADER not in headers and headers["Content-Type"] == "application/json"
    np.testing.assert_array_equal(outputs(json.loads(content))["probabilities"], plain["probabilities"])


def test_every_datatype_is_read_in_both_forms(runner: Path, cases: Path, server: Server) -> None:
    tensors = {name: array[:2] for name, array in inputs_of(cases / "bert").items()}
    plain = server.ask("POST", INFER, infer_body(tensors))[1]["outputs"]
    for datatype in ("UINT8", "INT16", "INT32", "UINT64"):
        status, content, _ = server.ask_bytes(INFER, *ids_body(tensors, datatype))
        assert (status, json.loads(content)["outputs"]) == (200, plain), datatype
    mask = tensors["attention_mask"]
    for data in ({"data": mask.astype(bool).tolist()}, {"parameters": {"binary_data_size": mask.size}}):
        message = infer_body({name: array for name, array in tensors.items() if name != "attention_mask"})
        told = {"name": "attention_mask", "datatype": "BOOL", "shape": list(mask.shape), **data}
        head = json.dumps({"inputs": [*message["inputs"], told]}).encode()
        body = head if "data" in data else head + raw("BOOL", mask)
        status, content, _ = server.ask_bytes(INFER, body, len(head))
        assert (status, json.loads(content)["outputs"]) == (200, plain)


def test_pixels_of_every_datatype(cases: Path, pictures: Server) -> None:
    shape = [1, 3, 12, 12]
    pixels = np.random.default_rng(0).normal(size=shape)
    pixels[0, 0, 0, :5] = [0, -0.0, 1e-7, -6e-8, 3e-5]  # some are subnormal as FP16
    with hydrant.load(cases / "vit-images/bundle", "onnxruntime") as predictor:

        def energy(array: np.ndarray) -> Any:
            return predictor.predict({"pixel_values": array}).energy

        wanted = {kind: energy(from_values("x", kind, tuple(shape), pixels.tolist())) for kind in KINDS}
        exact = energy(pixels.astype(np.float32))
    assert len({value.item() for value in wanted.values()}) >= 3, "the datatypes can be told apart"
    for kind in KINDS:
        told = {"name": "pixel_values", "datatype": kind, "shape": shape, "data": pixels.ravel().tolist()}
        given = raw(kind, pixels) if kind != "BF16" else to_bytes(Tensor("x", kind, pixels.astype(np.float32)))
        bodies = (
            binary_body({"pixel_values": (kind, shape, given)}),
            (json.dumps({"inputs": [told]}).encode(), None),
        )
        for body, length in bodies:
            status, content, _ = pictures.ask_bytes(INFER, body, length)
            assert status == 200, content
            np.testing.assert_allclose(outputs(json.loads(content))["energy"], wanted[kind], atol=1e-6, err_msg=kind)
    assert wanted["FP32"] == exact
    for value in (np.nan, np.inf, 1e300, -1e300):
        pixels[0, 0, 0, 0] = value
        status, content, _ = pictures.ask_bytes(
            INFER, *binary_body({"pixel_values": ("FP64", shape, raw("FP64", pixels))})
        )
        assert (status, "holds NaN or infinity" in content.decode()) == (400, True)
    pixels[0, 0, 0, 0] = 65520  # the first that FP16 does not hold
    told = {"name": "pixel_values", "datatype": "FP16", "shape": shape, "data": pixels.tolist()}
    assert "expected finite numbers" in pictures.refusal(400, "POST", INFER, {"inputs": [told]})


def test_image_files_as_bytes_and_in_base64(cases: Path, pictures: Server) -> None:
    files = [file.read_bytes() for file in sorted((cases / "vit-images/images").iterdir())]
    with hydrant.load(cases / "vit-images/bundle", "onnxruntime") as predictor:
        wanted, labels = predictor.predict(files), list(predictor.labels)
    forms = [files, [base64.b64encode(file) for file in files], [base64.encodebytes(file) for file in files]]
    for items in forms:
        body, length = binary_body(
            {"image": ("BYTES", [len(items)], raw("BYTES", items))}, parameters={"binary_data_output": True}
        )
        status, content, headers = pictures.ask_bytes(INFER, body, length)
        assert status == 200, content
        check_fields(binary_outputs(content, headers)[1], wanted, labels)
    for item in (b"", b"QUJD", b"QUJ", b"GIF89a", files[0][:50]):
        body, length = binary_body({"image": ("BYTES", [2, 1], raw("BYTES", [files[0], item]))})
        status, content, _ = pictures.ask_bytes(INFER, body, length)
        assert (status, "image input 1" in content.decode()) == (400, True), content


def malformed() -> Iterator[tuple[bytes, object]]:
    """Bodies of binary tensors that cannot be, with their header."""

    def body(size: object, tail: bytes, shape: object = (1, 2), kind: str = "INT64", **more: Any) -> tuple[bytes, int]:
        told = {"name": "input_ids", "datatype": kind, "shape": shape, "parameters": {"binary_data_size": size}, **more}
        head = json.dumps({"inputs": [told]}).encode()
        return head + tail, len(head)

    whole, length = body(16, bytes(16))
    yield from ((whole, header) for header in ("0", len(whole) + 1, 10**17))
    for size in (17, -16, 2**63, 2**64 + 16, "16", True, None, 16.0, [16]):
        yield body(size, bytes(16))
    yield body(15, bytes(15))
    yield body(16, bytes(17))
    yield body(16, bytes(15))
    yield body(16, bytes(16), data=[1, 2])
    yield body(0, b"")
    yield body(0, b"", [1, 2**31 - 1])
    yield whole[:length], length
    yield whole, None
    yield body(2, b"\0\2", kind="BOOL")
    for tail in (bytes(7), b"\5" + bytes(7), b"\1" + bytes(7), bytes(9), b"\xff" * 8):
        yield body(len(tail), tail, [2], "BYTES", name="text")


@pytest.mark.parametrize(("body", "length"), malformed())
def test_malformed_binary_bodies_are_refused_in_the_words_of_python(server: Server, body: bytes, length: Any) -> None:
    if length is None:
        body = body.decode("latin-1").rstrip("\0").encode()  # JSON alone, which says that more stands behind it
    with pytest.raises(ServeError) as caught:
        read_infer(body, None if length is None else int(length))
    status, content, headers = server.ask_bytes(INFER, body, length)
    assert (status, headers["Content-Type"]) == (caught.value.status, "application/json")
    words = {"'True'": "'true'", "'None'": "'null'", f"'{2**64 + 16}'": "'1.8446744073709552e+19'"}
    expected = caught.value.message
    for python, json_ in words.items():
        expected = expected.replace(python, json_)
    assert json.loads(content) == {"error": expected}


@pytest.mark.parametrize("word", ["", "x", "-5", "+5", "1.5", "0x10", "5 5", "9" * 25, "\xff"])
def test_lengths_that_are_no_numbers_are_refused(server: Server, word: str) -> None:
    status, content, _ = server.ask_bytes(INFER, b"{}", word)
    assert (status, list(json.loads(content))) == (400, ["error"])
    assert "expected the length of the JSON" in json.loads(content)["error"]


def test_numbers_that_no_model_reads_are_refused(server: Server) -> None:
    for kind, data, words in (
        ("UINT64", b"\xff" * 16, "holds '18446744073709551615'; expected whole numbers up to 9223372036854775807"),
        ("INT8", b"\xff\1", "input_ids has values from -1 to 1"),
        ("INT16", b"\0\x80\1\0", "input_ids has values from -32768 to 1"),
        ("FP32", bytes(8), "input_ids is float32 [1, 2]; expected int64"),
        ("FP16", b"\0\x7c\0\0", "input_ids is float32 [1, 2]; expected int64"),
        ("INT128", bytes(32), "has datatype 'INT128'; expected INT64"),
        ("BYTES", bytes(8), "has datatype 'BYTES'"),
    ):
        tensors = {name: (kind, [1, 2], data) for name in ("input_ids", "attention_mask")}
        status, content, _ = server.ask_bytes(INFER, *binary_body(tensors))
        assert (status, words in json.loads(content)["error"]) == (400, True), content


def test_damaged_binary_bodies_are_taken_or_refused_as_in_python(server: Server, cases: Path) -> None:
    tensors = {name: array[:2, :6] for name, array in inputs_of(cases / "bert").items()}
    body, length = ids_body(tensors, "INT16", outputs=[{"name": "energy", "parameters": {"binary_data": True}}])
    rng, taken = np.random.default_rng(3), 0
    with hydrant.load(cases / "bert/bundle", "onnxruntime") as predictor:
        served = SimpleNamespace(name="bundle", version="1", predictor=predictor, ready=True)
        for _ in range(120):
            damaged, place = bytearray(body), int(rng.integers(0, len(body)))
            change, many = rng.integers(0, 4), int(rng.integers(1, 4))
            if change == 0:
                damaged[place] = int(rng.integers(0, 256))
            elif change == 1:
                damaged[length + place % (len(body) - length)] = int(rng.integers(0, 3))
            elif change == 2:
                del damaged[place : place + many]
            else:
                damaged[place:place] = bytes(rng.integers(48, 58, many).tolist())  # digits
            grown = len(damaged) - len(body) if place < length else 0
            size = length + int(rng.choice([grown, grown, grown, grown, 0, grown + 1]))
            try:
                asked = read_infer(bytes(damaged), size)
                expected = predictor.predict(inputs_of_request(asked, served)).to_dict()
            except (ServeError, InputError) as error:
                expected = None
                assert getattr(error, "status", 400) == 400
            status, content, headers = server.ask_bytes(INFER, bytes(damaged), size)
            assert status == (400 if expected is None else 200), (bytes(damaged), size, content)
            if expected is not None and HEADER in headers:
                for name, array in binary_outputs(content, headers)[1].items():
                    np.testing.assert_allclose(array, expected[name], atol=1e-6)
                    taken += 1
    assert taken > 10, "some were taken"


def test_head_is_answered_as_get_without_a_body(server: Server) -> None:
    connection = http.client.HTTPConnection(LOOPBACK, server.port, timeout=60)
    paths = ["/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/bundle", "/v2/models/bundle/versions/1/ready"]
    for path, status in [*((path, 200) for path in paths), ("/v2/models/other", 404), ("/predict", 405)]:
        replies = []
        for method in ("GET", "HEAD"):  # over one connection: whatever came too much would be the next answer
            connection.request(method, path)
            reply = connection.getresponse()
            headers = {name: reply.headers[name] for name in ("Content-Type", "Allow", "X-Content-Type-Options")}
            replies.append((reply.status, headers, int(reply.headers["Content-Length"]), len(reply.read())))
        (status_, headers, length, found), (head_status, head_headers, head_length, nothing) = replies
        assert (status_, found, head_status, head_headers, nothing) == (status, length, status, headers, 0)
        assert head_length == length + (len("HEAD") - len("GET")) * (status == 405), "the message names the method"
    connection.close()


def test_tritonclient_reads_every_answer(server: Server, cases: Path, client_python: Path) -> None:
    tensors = {name: array[:5] for name, array in inputs_of(cases / "bert").items()}
    names = ["label", "label_index", "probabilities", "confidence", "energy", "abstain", "prediction_set"]
    ask = {"http": f"{LOOPBACK}:{server.port}", "model": "bundle", "outputs": names,
           "tensors": {name: array.tolist() for name, array in tensors.items()}}  # fmt: skip
    words = [str(client_python), str(Path(__file__).parent / "oip_clients.py"), "runner"]
    done = subprocess.run(words, input=json.dumps(ask), capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    assert told["server"]["extensions"] == ["binary_tensor_data"]
    assert (told["model"]["name"], told["model"]["versions"]) == ("bundle", ["1"])
    with hydrant.load(cases / "bert/bundle", "onnxruntime") as predictor:
        wanted = predictor.predict(tensors)
        labels = [predictor.labels[index] for index in wanted.label]
    for form in ("json", "binary", "default"):
        assert (told[form]["label"], told[form]["label_index"]) == (labels, wanted.label.tolist())
        for name in names[2:]:
            np.testing.assert_allclose(told[form][name], getattr(wanted, name), atol=1e-6, err_msg=f"{form}: {name}")
    status, message = told["refused"]
    assert "400" in status and "output 'logits' is unknown; this model gives probabilities, label" in message


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
        ({"inputs": [{"name": "input_ids", "datatype": "INT64", "shape": [1, 2]}]}, "has no data; expected an array"),
        ({"inputs": [IDS, MASK], "parameters": {"binary_data_output": 1}}, "binary_data_output '1'; expected true or"),
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
    assert "has the key 'texts'; expected aggregation, inputs, model, probabilities, version" in refusal(
        {"texts": ["a"]}
    )
    assert "expected an array of inputs" in refusal({"inputs": "a text"})
    assert server.ask("POST", "/predict", {"inputs": []})[1]["predictions"] == []
    assert "is unknown" in server.refusal(404, "POST", "/predict", {"inputs": [], "model": "other"})
    assert "has no version '7'" in server.refusal(404, "POST", "/predict", {"inputs": [], "version": "7"})
    assert "expected application/json" in server.refusal(415, "POST", "/predict", b"x", **{"Content-Type": "image/png"})
    assert "expected a nested array of numbers" in refusal({"inputs": {"input_ids": 3}})
    ids = "this model reads attention_mask, input_ids, token_type_ids here; send these"
    assert refusal({"inputs": ["a text"]}) == f"the request has texts, but {ids}"
    picture = {"name": "image", "datatype": "BYTES", "shape": [1], "data": ["AAAA"]}
    assert f"has images, but {ids}" in server.refusal(400, "POST", INFER, {"inputs": [picture]})
    assert "has shape [2, 2], but its data has 1 parts" in refusal({"inputs": {"input_ids": [[1, 2], [3]]}})
    assert "compressed" in server.refusal(415, "POST", "/predict", b"x", **{"Content-Encoding": "gzip"})


def test_the_operator_is_told_why_texts_are_not_read(runner: Path, cases: Path, server: Server) -> None:
    path = cases / "bert/bundle"
    last = (
        "running on onnxruntime, fp32\n"
        f"texts are not read: bundle {path} has no tokenizer.onnx, so it reads token ids; "
        f'make it with `hydrant export {path} --tokenizer`, or give token ids, in Python: numpy.savez("x.npz", '
        '**tokenizer(texts, padding=True, return_tensors="np"))\nstopped\n'
    )
    with serving(runner, path, "--verbose", "--backend", "onnxruntime", last=last) as found:
        assert str(path) not in found.refusal(400, "POST", "/predict", {"inputs": ["a text"]})


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


def test_pages_behind_a_proxy_are_of_the_same_site(runner: Path, cases: Path, server: Server, tmp_path: Path) -> None:
    own = f"127.0.0.1:{server.port}"
    assert server.ask("GET", "/v2", Origin=f"https://{own}")[0] == 200
    pointed = {"Host": "models.example", "Origin": "https://models.example"}
    assert "page of another site" in server.refusal(403, "GET", "/v2", **pointed)
    secret = "s3cret-of-32-characters-or-so!"
    (tmp_path / "token").write_text(secret)
    with serving(runner, cases / "bert/bundle", "--token-file", tmp_path / "token") as guarded:
        asked = {"Authorization": f"Bearer {secret}", "Host": "models.example"}
        for origin in ("https://models.example", "http://models.example"):
            assert guarded.ask("GET", "/v2", **asked, Origin=origin)[0] == 200
            assert "token" in guarded.refusal(401, "GET", "/v2", Host="models.example", Origin=origin)
        for origin in ("https://example.com", "https://models.example.com", "ftp://models.example", "null"):
            assert "page of another site" in guarded.refusal(403, "GET", "/v2", **asked, Origin=origin)


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "application/json ; charset=utf-8"},
        {"Content-Type": "Application/JSON"},
        {"Content-Type": "application/json\t;charset=utf-8"},
        {"Content-Encoding": "Identity"},
        {"Content-Encoding": "identity "},
    ],
)
def test_headers_in_other_forms_are_taken(server: Server, headers: dict[str, str]) -> None:
    assert server.ask("POST", "/predict", {"inputs": []}, **headers)[0] == 200


def test_what_the_library_refuses_is_no_json(server: Server) -> None:
    """As docs/how-to/cpp.md says of a path or headers beyond 32 KiB."""
    connection = http.client.HTTPConnection(LOOPBACK, server.port, timeout=60)
    for path, headers, status in ((f"/{'a' * 40_000}", {}, 414), ("/v2", {"Long": "a" * 40_000}, 431)):
        connection.request("GET", path, headers=headers)
        reply = connection.getresponse()
        assert (reply.status, reply.read().startswith(b"<html>")) == (status, True)
        connection.close()


def test_paths_methods_and_headers_that_are_refused(server: Server) -> None:
    for path in (
        "/",
        "/v3",
        "/v2/models",
        "/v2/models/bundle/no",
        "/../../etc/passwd",
        "/v2/models/bundle%2f..",
        "/%00",
        "/v2%00x",
        "/v2/health/live/%00?x",
    ):
        assert server.refusal(404, "GET", path)
    assert "model 'other' is unknown" in server.refusal(404, "POST", "/v2/models/other/infer", {})
    assert "has no version '2'" in server.refusal(404, "GET", "/v2/models/bundle/versions/2")
    status, told, headers = server.ask("GET", "/predict")
    assert (status, headers["Allow"], list(told)) == (405, "POST", ["error"])
    assert server.refusal(405, "POST", "/v2/health/live", b"{}")
    assert "'DELETE' is not allowed at '/v2'; expected GET, HEAD" in server.refusal(405, "DELETE", "/v2")
    assert server.ask("PUT", "/v2/models/bundle")[2]["Allow"] == "GET, HEAD"


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


def test_a_request_of_too_many_inputs(runner: Path, cases: Path, server: Server) -> None:
    tensors = inputs_of(cases / "bert")
    four, five = ({name: array[:count] for name, array in tensors.items()} for count in (4, 5))
    words = (
        "the request has 5 inputs; at most 4 are taken at once; send them in parts, or start the server with a larger"
    )
    with serving(runner, cases / "bert/bundle", "--max-inputs", 4) as small:
        assert small.ask("POST", INFER, infer_body(four))[0] == 200
        assert words in small.refusal(413, "POST", INFER, infer_body(five))
        plain = {name: array.tolist() for name, array in five.items()}
        assert words in small.refusal(413, "POST", "/predict", {"inputs": plain})


def test_too_many_inputs_are_refused_before_anything_is_made_of_them(runner: Path, cases: Path, server: Server) -> None:
    body = b'{"inputs":[' + b",".join([b'""'] * (2**23 // 3 - 10)) + b"]}"
    with serving(runner, cases / "bert/bundle") as found:
        assert found.refusal(413, "POST", "/predict", body).startswith(
            f"the request has {2**23 // 3 - 10} inputs; at most 1024 are taken at once"
        )
        text = {"name": "text", "datatype": "BYTES", "shape": [2000], "data": [""] * 2000}
        assert "the request has 2000 inputs" in found.refusal(413, "POST", INFER, {"inputs": [text]})
        memory = Path(f"/proc/{found.process.pid}/status").read_text()
        assert int(memory.split("VmHWM:")[1].split()[0]) < MOST_KB, "kB"


def encoded(width: int, height: int, kind: str, **options: Any) -> str:
    """A picture of many pixels in few bytes, in base64."""
    file = io.BytesIO()
    Image.new("L" if kind == "jpeg" else "1", (width, height)).save(file, kind, **options)
    return base64.b64encode(file.getvalue()).decode()


def test_pictures_of_many_pixels_are_refused_before_they_are_decoded(runner: Path, cases: Path, server: Server) -> None:
    small = [encoded(40, 30, "png"), encoded(30, 40, "jpeg"), encoded(40, 10, "jpeg", progressive=True)]
    words = "pixels, the most that are decoded for one; send them in parts, make them smaller, or start the server with"
    with serving(runner, cases / "vit-images/bundle") as found:
        for huge in (encoded(9000, 9000, "png"), encoded(9000, 9000, "jpeg", progressive=True)):
            assert f"have more than 33554432 {words}" in found.refusal(413, "POST", "/predict", {"inputs": [huge]})
        strip = {"inputs": [small[0], encoded(65_536, 1, "png")]}
        refusal = found.refusal(413, "POST", "/predict", strip)
        assert refusal == "image input 1 has 65536 by 1 pixels; expected at most 65535 on each side; cut it up"
        image = {"name": "image", "datatype": "BYTES", "shape": [2], "data": [small[0], huge]}
        assert words in found.refusal(413, "POST", INFER, {"inputs": [image]})
        assert found.ask("POST", "/predict", {"inputs": small})[0] == 200
        memory = Path(f"/proc/{found.process.pid}/status").read_text()
        assert int(memory.split("VmHWM:")[1].split()[0]) < 200_000, "kB"
    for most, status in ((2800, 200), (2799, 413)):
        with serving(runner, cases / "vit-images/bundle", "--max-pixels", most) as found:
            assert found.ask("POST", "/predict", {"inputs": small})[0] == status


def test_bodies_that_do_not_end_take_bounded_memory(runner: Path, cases: Path, server: Server) -> None:
    most = 2**20
    head = f"POST /predict HTTP/1.1\r\nHost: {LOOPBACK}\r\nContent-Length: {most}\r\n\r\n".encode()
    with serving(runner, cases / "bert/bundle", "--max-bytes", most) as small:
        held = [socket.create_connection((LOOPBACK, small.port), timeout=60) for _ in range(16)]
        for each in held:
            each.sendall(head + b" " * (most - 1))
        wait_until_read(small.port)
        status, told, headers = small.ask("POST", "/predict", b" " * most)
        assert status == 503
        assert told["error"].startswith("the bodies of other requests take all the memory there is for them; ask again")
        assert headers["Retry-After"] == "1"
        assert small.ask("GET", "/v2/health/ready")[0] == 200
        held[0].sendall(b" ")
        assert held[0].recv(20).startswith(b"HTTP/1.1 400")
        for each in held:
            each.close()
        end = time.monotonic() + 30
        while (found := small.ask("POST", "/predict", b" " * most))[0] == 503 and time.monotonic() < end:
            time.sleep(0.05)
        assert "is not JSON" in found[1]["error"]
        memory = Path(f"/proc/{small.process.pid}/status").read_text()
        assert int(memory.split("VmHWM:")[1].split()[0]) < 200_000, "kB"


def test_long_answers_that_nobody_takes_are_bounded(runner: Path, cases: Path, server: Server) -> None:
    def body(rows: int) -> bytes:
        inputs = {name: [[1]] * rows for name in ("input_ids", "attention_mask", "token_type_ids")}
        return json.dumps({"inputs": inputs}, separators=(",", ":")).encode()

    many, some = body(40_000), body(1000)  # 12 MB of answer, more than a socket buffers, and 300 kB
    head = f"POST /predict HTTP/1.1\r\nHost: {LOOPBACK}\r\nContent-Length: {len(many)}\r\n\r\n".encode()
    options = ("--max-bytes", len(many), "--max-inputs", 40_000)
    with serving(runner, cases / "bert/bundle", *options) as found, socket.socket() as slow:
        slow.settimeout(60)
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.connect((LOOPBACK, found.port))
        slow.sendall(head + many)
        assert slow.recv(15) == b"HTTP/1.1 200 OK"  # and takes no more of it
        status, told, headers = found.ask("POST", "/predict", some)
        assert status == 503
        assert told["error"].startswith("long answers that others have not taken yet hold all the memory there is for")
        assert headers["Retry-After"] == "1"
        assert found.ask("POST", "/predict", body(10))[0] == 200
        slow.close()
        end = time.monotonic() + 30
        while (last := found.ask("POST", "/predict", some))[0] == 503 and time.monotonic() < end:
            time.sleep(0.05)
        assert last[0] == 200
        assert len(last[1]["predictions"]) == 1000


def wait_until_read(port: int) -> None:
    """Wait until a server has read all that was sent to it."""
    end = time.monotonic() + 30
    while time.monotonic() < end:
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        queues = [row[4] for row in rows if f":{port:04X}" in row[1] + row[2]]
        if set(queues) == {"00000000:00000000"}:
            return
        time.sleep(0.05)
    raise AssertionError(queues)


def test_what_a_client_that_left_had_asked_is_not_computed(runner: Path, cases: Path, server: Server) -> None:
    options = ("--workers", 1, "--batch-size", 1, "--threads", 1, "--max-inputs", 2**20)
    with serving(runner, cases / "bert/bundle", *options) as found:
        rows, seconds = 64, 0.0
        while seconds < 0.3:  # a prediction that takes its time, on this machine
            rows *= 2
            ids = np.full((rows, 1), 3, np.int64)
            body, length = ids_body(
                {"input_ids": ids, "attention_mask": np.ones_like(ids)}, outputs=[{"name": "energy"}]
            )
            started = time.monotonic()
            assert found.ask_bytes(INFER, body, length)[0] == 200
            seconds = time.monotonic() - started
        head = f"POST {INFER} HTTP/1.1\r\nHost: {LOOPBACK}\r\nContent-Length: {len(body)}\r\n{HEADER}: {length}\r\n\r\n"
        for _ in range(20):
            with socket.create_connection((LOOPBACK, found.port)) as left:
                left.sendall(head.encode() + body)
        started = time.monotonic()
        assert found.ask("POST", "/predict", {"inputs": []})[0] == 200
        assert time.monotonic() - started < 10 * seconds


AMBIGUOUS = [
    (b"Content-Length: 2\r\nContent-Length: 3\r\n", "says more than once how long it is"),
    (b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", "says more than once how long it is"),
    (b"Transfer-Encoding: chunked\r\ntransfer-encoding: chunked\r\n", "says more than once how long it is"),
    (b"Transfer-Encoding: gzip, chunked\r\n", "has Transfer-Encoding 'gzip, chunked'; expected chunked"),
    (b"Content-Length : 2\r\n", "a header is called 'Content-Length'; expected a name of letters"),
    (b"Content-Length: 2\r\nhost: localhost\r\n", "has 2 headers called Host; expected one"),
    (
        b"Content-Length:\r\n 2\r\n",
        "the header 'Content-Length2' goes on in the next line; expected each header on one",
    ),
    (b"Content-Length: 2\r\nTransfer-Encoding:\r\n chunked\r\n", "'Transfer-Encodingchunked' goes on in the next line"),
    (b"Content-Length: 2\r\nhost:\r\n\tevil.example\r\n", "'hostevil.example' goes on in the next line"),
    (b"Content-: 2\r\n Length\r\nX: y\r\n", "the header 'Content-Length' goes on in the next line"),
    (b"Content-Length: 2\r\nX:\r\n a\r\n b\r\n", "the header 'Xab' goes on in the next line"),
]


@pytest.mark.parametrize(("headers", "words"), AMBIGUOUS)
def test_requests_that_a_proxy_may_read_otherwise_are_refused(server: Server, headers: bytes, words: str) -> None:
    with socket.create_connection((LOOPBACK, server.port), timeout=60) as raw_:
        raw_.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n2\r\n{}\r\n0\r\n\r\n")
        with raw_.makefile("rb") as stream:
            head, _, body = stream.read().partition(b"\r\n\r\n")  # to the end: nothing that follows is answered
    assert head.startswith(b"HTTP/1.1 400 ") and b"Connection: close" in head
    assert words in json.loads(body)["error"]


def test_a_request_says_whom_it_is_for(server: Server) -> None:
    for head, status in (
        (b"HTTP/1.1\r\n", 400),
        (b"HTTP/1.0\r\n", 200),
        (b"HTTP/1.1\r\nHost:localhost\r\nHostname:\t \r\nX:  y\r\n", 200),
    ):
        with socket.create_connection((LOOPBACK, server.port), timeout=60) as raw_:
            raw_.sendall(b"GET /v2 " + head + b"\r\n")
            assert raw_.recv(12) == b"HTTP/1.1 %d" % status, head


def test_what_is_no_http_ends_nothing(server: Server) -> None:
    host = b"Host: localhost\r\n"
    odd = [bytes(range(256)) * 4, b"GET /v2\r\n\r\n", b"GET /v2 HTTP/9.9\r\n" + host + b"\r\n",
           b"POST /predict HTTP/1.1\r\n" + host + b"Content-Length: -1\r\n\r\n{}",
           b"POST /predict HTTP/1.1\r\n" + host + b"Content-Length: " + b"9" * 40 + b"\r\n\r\n{}",
           b"POST /predict HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
           b"POST /predict HTTP/1.1\r\n" + host + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
           b"GET /" + b"a" * 50_000 + b" HTTP/1.1\r\n" + host + b"\r\n",
           b"GET /v2 HTTP/1.1\r\n" + host + b"a: b\r\n" * 10_000 + b"\r\n"]  # fmt: skip
    for data in odd:
        with (
            socket.create_connection((LOOPBACK, server.port), timeout=60) as raw_,
            contextlib.suppress(ConnectionError),
        ):
            raw_.sendall(data)
            with raw_.makefile("rb") as stream:
                assert stream.read().startswith((b"HTTP/1.1 4", b"HTTP/1.1 5"))
        assert server.ask("GET", "/v2/health/ready")[0] == 200
    with socket.create_connection((LOOPBACK, server.port), timeout=60) as raw_:  # several at once, answered in turn
        get = b"GET %b HTTP/1.1\r\n" + host + b"\r\n"
        post = b"POST /predict HTTP/1.1\r\n" + host + b"Content-Length: 2\r\n\r\n{}"
        raw_.sendall(
            get % b"/v2/health/live/" + post + get.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") % b"/no"
        )
        with raw_.makefile("rb") as stream:
            statuses = [line.split()[1] for line in stream.read().splitlines() if line.startswith(b"HTTP/1.1")]
    assert statuses == [b"200", b"400", b"404"]


def test_clients_that_take_too_long_are_closed(runner: Path, cases: Path, server: Server) -> None:
    head = f"POST /predict HTTP/1.1\r\nHost: {LOOPBACK}\r\nContent-Length: 100\r\n\r\n".encode()
    options = ("--transfer-timeout", 1, "--batch-size", 1, "--threads", 1, "--max-inputs", 2500)
    with serving(runner, cases / "bert/bundle", *options) as found:
        slow = [socket.create_connection((LOOPBACK, found.port), timeout=60) for _ in range(3)]
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
        idle = http.client.HTTPConnection(LOOPBACK, found.port, timeout=60)
        assert answer_on(idle, "GET", "/v2")[0] == 200
        rested = time.monotonic()
        ids = np.full((2500, 1), 3)  # what the server itself takes is its own time
        assert found.ask("POST", INFER, infer_body({"input_ids": ids, "attention_mask": np.ones_like(ids)}))[0] == 200
        time.sleep(max(0.0, rested + 2.5 - time.monotonic()))
        assert answer_on(idle, "GET", "/v2")[0] == 200, "between requests a connection may rest for longer"
        idle.close()


def test_many_clients_at_once_each_get_their_own_answer(server: Server, cases: Path) -> None:
    tensors = inputs_of(cases / "bert")
    _, told, _ = server.ask("POST", "/v2/models/bundle/infer", infer_body(tensors))
    alone = outputs(told)["probabilities"]

    def client(number: int) -> int:
        connection = http.client.HTTPConnection(LOOPBACK, server.port, timeout=120)
        rows = np.random.default_rng(number).integers(0, len(alone), 8)
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

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(client, range(16))) == 16 * 8
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
    with contextlib.ExitStack() as stack:  # closed where this fails, too: the server waits for what was begun
        slow = [stack.enter_context(socket.create_connection((LOOPBACK, server.port))) for _ in range(20)]
        for each in slow:
            each.sendall(head + body[:10])
        status, told, _ = server.ask("POST", "/v2/models/bundle/infer", body)
        assert (status, len(told["outputs"][0]["data"]) > 0) == (200, True)
        slow[0].sendall(body[10:])
        assert slow[0].recv(20).startswith(b"HTTP/1.1 200")


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
    rows = 100_000  # each a run of its own: many seconds
    inputs = [{"name": name, "datatype": "INT64", "shape": [rows, 1], "data": [1] * rows}
              for name in ("input_ids", "attention_mask")]  # fmt: skip
    last = "stopped; 1 requests were not answered\n"
    with serving(
        runner, cases / "bert/bundle", "--batch-size", 1, "--threads", 1, "--max-inputs", rows, last=last
    ) as found:
        asking = http.client.HTTPConnection(LOOPBACK, found.port, timeout=60)
        asking.request("POST", "/v2/models/bundle/infer", json.dumps({"inputs": inputs}))
        time.sleep(0.5)
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
        (("--serve", "--json"), "--json goes with inputs, not with --serve; leave it out"),
        (("--serve", "--probabilities"), "--probabilities goes with inputs, not with --serve"),
        (("--serve", "--aggregation", "mean"), "--aggregation goes with inputs, not with --serve"),
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
