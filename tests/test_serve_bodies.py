"""Parsing and checks of requests: forms, options, base64, origins and hosts."""

import base64
import json
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from hydrant.errors import InputError
from hydrant.serving.http_refusals import ServeError
from hydrant.serving.middleware import check_host, check_origin
from hydrant.serving.predict_request import Part, PredictRequest, model_inputs, read_parts, read_request
from hydrant.serving.serve_settings import ServeSettings
from hypothesis import given, settings
from hypothesis import strategies as st

TEXTS = SimpleNamespace(modality="text", task="classification")
TAGS = SimpleNamespace(modality="text", task="tokens")
IMAGES = SimpleNamespace(modality="image", task="classification")
SOUNDS = SimpleNamespace(modality="audio", task="classification")
FORM = "multipart/form-data; boundary=x"


def form(*files: tuple[str, Any]) -> tuple[bytes, str]:
    """A form's body and Content-Type, by httpx."""
    request = httpx.Request("POST", "http://here/", files=list(files))
    return request.read(), request.headers["content-type"]


def predict_request(*inputs: Any) -> PredictRequest:
    return read_request(json.dumps({"inputs": inputs}).encode(), "application/json", {})


def inputs_of(request: PredictRequest, predictor: Any) -> tuple[list[Any], list[Any]]:
    return model_inputs(request, predictor, 100)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(["file", "b", "c d"]), st.binary(max_size=300)), min_size=1, max_size=5))
def test_forms_of_httpx_are_read_byte_by_byte(files: list[tuple[str, bytes]]) -> None:
    body, kind = form(*((name, (f"{index} ü.png", data)) for index, (name, data) in enumerate(files)))
    assert read_parts(body, kind) == [Part(name, f"{index} ü.png", data) for index, (name, data) in enumerate(files)]


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=400), st.sampled_from(["", FORM, "image/png", "text/plain", "a/b"]))
def test_bodies_of_any_bytes_are_read_or_refused(body: bytes, kind: str) -> None:
    for whole in (body, b"--x\r\n" + body + b"\r\n--x--\r\n"):
        try:
            request = read_request(whole, kind, {})
        except ServeError as error:
            assert error.status in (400, 415)
        else:
            assert len(request.inputs) == len(request.names)


@pytest.mark.parametrize(("body", "kind", "name"), [
    (b"", "multipart/form-data", "boundary"),
    (b"--x\r\n\r\nhello\r\n", FORM, "boundary"),
    (b"--x\r\n\r\nhello\r\n--x--", FORM, "form field"),
    (b"--x\r\nContent-Disposition: form-data; name*=\"a\x00b''c\"\r\n\r\nhello\r\n--x--", FORM, "name"),
    (b'--x\r\nContent-Disposition: form-data; name="' + b";" * 16_000 + b"\r\n\r\nhello\r\n--x--", FORM, "16001"),
    (b"[" * 100_000, "application/json", "the body"),
    (b"{}", "application/json", "inputs"),
    (b'{"inputs": [], "models": 1}', "", "models"),
    (b'{"inputs": [], "timeout": "nan"}', "", "timeout"),
    (b"a text", "application/xml", "application/xml"),
])  # fmt: skip
def test_malformed_bodies_are_refused(body: bytes, kind: str, name: str) -> None:
    with pytest.raises(ServeError, match=name):
        read_request(body, kind, {})


def test_texts_pairs_words_images_and_sounds() -> None:
    body = predict_request("a", ["b", "c"], {"text": "d"}, {"text": "e", "text_pair": "f"})
    inputs, shown = inputs_of(body, TEXTS)
    assert inputs == shown == ["a", ("b", "c"), "d", ("e", "f")]
    assert inputs_of(predict_request("a", ["b", "c"], {"tokens": ["d"]}), TAGS)[0] == ["a", ["b", "c"], ["d"]]
    word = base64.b64encode(b"picture").decode()
    lines = "\r\n ".join(word)  # as `base64` and mail programs break them
    body = predict_request(word, {"image": word}, f"data:image/png;base64,{word}", lines)
    assert inputs_of(body, IMAGES) == ([b"picture"] * 4, [f"image {place}" for place in range(4)])
    body = read_request(*form(("image", ("cat.png", b"cat")), ("file", ("../etc/passwd", b"dog"))), {"model": "m"})
    assert inputs_of(body, IMAGES) == ([b"cat", b"dog"], ["cat.png", "../etc/passwd"])
    assert body.options.model == "m"
    body = read_request(b"cat", "image/png", {"probabilities": "true", "timeout": "2"})
    assert inputs_of(body, IMAGES) == ([b"cat"], ["image 0"])
    assert (body.options.probabilities, body.options.timeout) == (True, 2)
    field = b'--x\r\nContent-Disposition: form-data; name="audio"\r\n\r\nmeow\r\n--x--\r\n'
    for body in (read_request(b"meow", "audio/wav", {}), read_request(field, FORM, {})):
        assert inputs_of(body, SOUNDS) == ([b"meow"], ["audio 0"])
    assert read_parts(field.replace(b"audio", b"text"), FORM) == [Part("text", None, b"meow")]


@pytest.mark.parametrize(
    ("item", "predictor"),
    [
        (3, TEXTS), (["a", "b", "c"], TEXTS), ({"path": "/etc/passwd"}, TEXTS), ([1], TAGS), ("/etc/passwd", IMAGES),
        ({"path": "cat.png"}, IMAGES),
    ],
)  # fmt: skip
def test_an_input_of_another_kind_is_named(item: Any, predictor: Any) -> None:
    with pytest.raises(InputError, match="input 1"):
        inputs_of(predict_request({"text": "a"} if predictor is not IMAGES else "AAAA", item), predictor)


@pytest.mark.parametrize(("origin", "host", "bound", "allowed"), [
    (None, None, "127.0.0.1", True),
    (None, b"localhost", "127.0.0.1", True),
    (None, b"[::1]:8000", "::1", True),
    (None, b"evil.example:8000", "127.0.0.1", False),  # DNS rebinding
    (None, b"models.example", "0.0.0.0", True),
    (None, b"proxy.example", "127.0.0.1", True),
    (None, b"[", "127.0.0.1", False),
    (b"http://localhost:8000", b"localhost:8000", "127.0.0.1", True),
    (b"http://evil.example", b"127.0.0.1:8000", "127.0.0.1", False),
    (b"http://localhost:9999", b"localhost:8000", "127.0.0.1", False),
    (b"http://evil.example", b"models.example:8000", "0.0.0.0", False),
    (b"null", b"127.0.0.1:8000", "127.0.0.1", False),
    (b"https://proxy.example", b"proxy.example", "127.0.0.1", True),
])  # fmt: skip
def test_pages_of_other_sites_are_refused(origin: bytes | None, host: bytes | None, bound: str, allowed: bool) -> None:
    service = ServeSettings(host=bound, origins=["https://proxy.example"])
    try:
        check_host(host, service)
        check_origin(origin, host or b"", service)
    except ServeError as error:
        assert not allowed, error
        assert error.status == 403
    else:
        assert allowed
