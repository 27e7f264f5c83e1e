"""What requests hold, before a model sees it: forms, options, base64, origins and tokens."""

from __future__ import annotations

import base64
import json
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from hydrant.errors import InputError
from hydrant.serving.asked import Asked, inputs_for, read_asked
from hydrant.serving.errors import ServeError
from hydrant.serving.guard import check_host, check_origin, check_token
from hydrant.serving.multipart import Part, read_parts
from hydrant.serving.settings import ServeSettings
from hypothesis import given, settings
from hypothesis import strategies as st

TEXTS = SimpleNamespace(modality="text", task="classification")
TAGS = SimpleNamespace(modality="text", task="tokens")
IMAGES = SimpleNamespace(modality="image", task="classification")
SOUNDS = SimpleNamespace(modality="audio", task="classification")


def form(*files: tuple[str, Any]) -> tuple[bytes, str]:
    """A body and its type, as httpx makes them."""
    request = httpx.Request("POST", "http://here/", files=list(files))
    return request.read(), request.headers["content-type"]


def asked(facts: Any, query: dict[str, str] | None = None) -> Asked:
    return read_asked(json.dumps(facts).encode(), "application/json", query or {})


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from(["file", "b", "c d"]), st.binary(max_size=300)), min_size=1, max_size=5))
def test_forms_of_httpx_are_read_byte_by_byte(files: list[tuple[str, bytes]]) -> None:
    body, kind = form(*((name, (f"{index} ü.png", data)) for index, (name, data) in enumerate(files)))
    found = read_parts(body, kind)
    assert [(part.name, part.data) for part in found] == files
    assert [part.filename for part in found] == [f"{index} ü.png" for index in range(len(files))]


@settings(deadline=None, max_examples=200)
@given(
    st.binary(max_size=400), st.sampled_from(["", "multipart/form-data; boundary=ab", "image/png", "text/plain", "a/b"])
)
def test_bodies_of_any_bytes_are_read_or_refused(body: bytes, kind: str) -> None:
    for given_body in (body, b"--ab\r\n" + body + b"\r\n--ab--\r\n"):
        try:
            found = read_asked(given_body, kind, {})
        except ServeError as error:
            assert error.status in (400, 415)
        else:
            assert len(found.inputs) == len(found.shown)


def test_a_part_without_a_filename_is_a_field() -> None:
    body = b'--x\r\nContent-Disposition: form-data; name="text"\r\n\r\nhello\r\n--x--\r\n'
    assert read_parts(body, "multipart/form-data; boundary=x") == [Part("text", None, b"hello")]


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (b"", "multipart/form-data", "no usable boundary"),
        (b"--x\r\n\r\nhello\r\n", "multipart/form-data; boundary=x", "does not end with its boundary"),
        (b"--x\r\nhello\r\n--x--", "multipart/form-data; boundary=x", "part of the body is malformed"),
        (b"--x\r\n\r\nhello\r\n--x--", "multipart/form-data; boundary=x", "is no form field"),
        (
            b"--x\r\nContent-Disposition: form-data; name*=\"a\x00b''c\"\r\n\r\nhello\r\n--x--",
            "multipart/form-data; boundary=x",
            "has a name that cannot be read",
        ),
        (
            b"--x\r\nContent-Disposition: form-data; name*=a; name*1=b\r\n\r\nhello\r\n--x--",
            "multipart/form-data; boundary=x",
            "has a name that cannot be read",
        ),
        (
            b'--x\r\nContent-Disposition: form-data; name="'
            + b";" * 16_000
            + b"\r\n\r\nhello\r\n--x--",  # half a second
            "multipart/form-data; boundary=x",
            "a header of the request has 16001 semicolons; expected 64 at most",
        ),
        (b"", f"multipart/form-data; boundary=x{';' * 70}", "a header of the request has 71 semicolons"),
        (b"{", "application/json", "the body is not JSON"),
        (b"[" * 100_000, "application/json", "the body is not JSON (nested too deeply); expected an object"),
        (b"[]", "application/json", "the body is a JSON array; expected an object with inputs"),
        (b"null", "application/json", "the body is a JSON null; expected an object with inputs"),
        (b'{"inputs": ["\xe4"]}', "application/json", "the body is not JSON (byte 13 is not UTF-8: invalid"),
        (b"{}", "application/json", "the body has no inputs; expected a list"),
        (b'{"inputs": "a text"}', "application/json", "the body has inputs = 'a text'; expected a list of them"),
        (b'{"inputs": [], "models": 1}', "", "the request has 'models', which is not known; expected inputs, model"),
        (b'{"inputs": [], "model": 1}', "", "model is 1; expected a string"),
        (b'{"inputs": [], "probabilities": "maybe"}', "", "probabilities is 'maybe'; expected true or false"),
        (b'{"inputs": [], "aggregation": "worst"}', "", "aggregation is 'worst'; expected one of first, mean, max"),
        (b'{"inputs": [], "timeout": NaN}', "", "the request holds NaN, which JSON has not; send finite numbers"),
        (b'{"inputs": [], "timeout": "nan"}', "", "timeout is 'nan'; expected seconds"),
        (b'{"inputs": [], "timeout": -1}', "", "timeout is '-1'; expected seconds"),
        (b"a text", "application/xml", "the Content-Type is 'application/xml'; expected application/json"),
    ],
)
def test_what_cannot_be_read_is_refused_in_words(body: bytes, kind: str, words: str) -> None:
    with pytest.raises(ServeError) as refused:
        read_asked(body, kind, {})
    assert words in refused.value.message


def test_texts_pairs_words_and_images() -> None:
    body = asked({"inputs": ["a", ["b", "c"], {"text": "d"}, {"text": "e", "text_pair": "f"}]})
    inputs, shown = inputs_for(body, TEXTS)  # type: ignore[arg-type]
    assert inputs == shown == ["a", ("b", "c"), "d", ("e", "f")]
    body = asked({"inputs": ["a", ["b", "c"], {"tokens": ["d"]}]})
    assert inputs_for(body, TAGS)[0] == ["a", ["b", "c"], ["d"]]  # type: ignore[arg-type]
    word = base64.b64encode(b"picture").decode()
    lines = "\r\n ".join(word)  # as `base64` and mail programs break them
    body = asked({"inputs": [word, {"image": word}, f"data:image/png;base64,{word}", lines]})
    assert inputs_for(body, IMAGES) == ([b"picture"] * 4, [f"image {place}" for place in range(4)])  # type: ignore[arg-type]
    body = read_asked(*form(("image", ("cat.png", b"cat")), ("file", ("../etc/passwd", b"dog"))), {"model": "m"})
    assert inputs_for(body, IMAGES) == ([b"cat", b"dog"], ["cat.png", "../etc/passwd"])  # type: ignore[arg-type]
    assert body.model == "m"
    body = read_asked(b"cat", "image/png", {"probabilities": "true", "timeout": "2"})
    assert inputs_for(body, IMAGES) == ([b"cat"], ["image 0"])  # type: ignore[arg-type]
    assert (body.probabilities, body.timeout) == (True, 2)
    body = read_asked(b"meow", "audio/wav", {})
    assert inputs_for(body, SOUNDS) == ([b"meow"], ["audio 0"])  # type: ignore[arg-type]
    body = asked({"inputs": [{"audio": word}]})
    assert inputs_for(body, SOUNDS) == ([b"picture"], ["audio 0"])  # type: ignore[arg-type]
    field = b'--x\r\nContent-Disposition: form-data; name="audio"\r\n\r\nmeow\r\n--x--\r\n'
    body = read_asked(field, "multipart/form-data; boundary=x", {})
    assert inputs_for(body, SOUNDS) == ([b"meow"], ["audio 0"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("item", "predictor", "words"),
    [
        (3, TEXTS, "input 0 is 3; expected a text"),
        (["a", "b", "c"], TEXTS, "input 0 is a list of 3; expected a text"),
        ({"path": "/etc/passwd"}, TEXTS, "input 0 is an object with path; expected a text"),
        ({"text": ["a"]}, TEXTS, "input 0 is an object with text"),
        ([1], TAGS, "input 0 is a list of 1; expected a text, or its words"),
        ("/etc/passwd", IMAGES, "input 0, '/etc/passwd', is not base64; expected an image file in base64"),
        ("", IMAGES, "input 0 is empty"),
        ({"path": "cat.png"}, IMAGES, "input 0 is an object with path; expected an image file in base64"),
    ],
)
def test_an_input_of_another_kind_is_named(item: Any, predictor: Any, words: str) -> None:
    with pytest.raises(InputError) as refused:
        inputs_for(asked({"inputs": [item]}), predictor)
    assert words in str(refused.value)


def test_tokens() -> None:
    check_token(b"Bearer a-long-secret", "a-long-secret")
    for wrong in (b"", b"Bearer", b"Bearer a-long-secre", b"Basic a-long-secret", b"a-long-secret", b"Bearer \xff"):
        with pytest.raises(ServeError, match="missing or wrong") as refused:
            check_token(wrong, "a-long-secret")
        assert refused.value.status == 401


@pytest.mark.parametrize(
    ("origin", "host", "bound", "allowed"),
    [
        (None, None, "127.0.0.1", True),
        (None, b"127.0.0.1:8000", "127.0.0.1", True),
        (None, b"localhost", "127.0.0.1", True),
        (None, b"[::1]:8000", "::1", True),
        (None, b"evil.example:8000", "127.0.0.1", False),  # its name was made to lead here
        (None, b"models.example", "0.0.0.0", True),
        (None, b"proxy.example", "127.0.0.1", True),
        (None, b"[", "127.0.0.1", False),
        (b"http://127.0.0.1:8000", b"127.0.0.1:8000", "127.0.0.1", True),
        (b"http://localhost:8000", b"localhost:8000", "127.0.0.1", True),
        (b"http://evil.example", b"127.0.0.1:8000", "127.0.0.1", False),
        (b"http://localhost:9999", b"localhost:8000", "127.0.0.1", False),
        (b"http://models.example:8000", b"models.example:8000", "0.0.0.0", True),
        (b"http://evil.example", b"models.example:8000", "0.0.0.0", False),
        (b"null", b"127.0.0.1:8000", "127.0.0.1", False),
        (b"https://proxy.example", b"127.0.0.1:8000", "127.0.0.1", True),
        (b"https://proxy.example", b"proxy.example", "127.0.0.1", True),
    ],
)
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
