"""Requests that are fuzzed: bodies of the Open Inference Protocol, by REST and by gRPC, and of ``/predict``."""

from __future__ import annotations

import base64
import io
import json
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from fuzz_target import Made, Target, may_refuse, refusing, seeds_of
from hydrant.errors import InputError
from hydrant.serving.datatypes import Tensor
from hydrant.serving.oip import InferRequest, inputs_of, outputs_of, read_infer, write_infer
from hydrant.serving.predict_request import model_inputs, read_request

READERS = [
    SimpleNamespace(modality=modality, task=task)
    for modality, task in (("text", "classification"), ("text", "tokens"), ("image", "classification"), ("audio", ""))
]
"""What ``/predict`` may be asked for: as much of a predictor as its inputs depend on."""


def asked(place: Path) -> dict[str, Made]:
    """The targets, by name."""
    return {
        "infer": partial(_infer, place),
        "binary": partial(_binary, place / "bundle"),
        "grpc": partial(_grpc, place / "bundle"),
        "predict": _predict,
    }


SERVED: Any = SimpleNamespace(name="tiny", version="1")


def _answerer(bundle: Path) -> Callable[[InferRequest], tuple[Tensor, ...]]:
    """Answers a request as if it had no rows: its inputs are prepared, its outputs chosen."""
    from hydrant import load

    predictor = load(bundle, "onnxruntime")
    served: Any = SimpleNamespace(name="tiny", version="1", predictor=predictor, ready=True)
    nothing = predictor.nothing()

    def answer(request: InferRequest) -> tuple[Tensor, ...]:
        inputs = inputs_of(request, served)
        assert len(inputs) > 0
        return outputs_of(nothing, request, served)

    return answer


def _infer(place: Path) -> Target:
    """Of a model of texts, and of one of images."""
    answers = {name: _answerer(place / name) for name in ("bundle", "pictures")}

    def read(data: bytes) -> None:
        request = read_infer(data)
        for name, answer in answers.items():
            with may_refuse(f"ask {name}"):
                body, length = write_infer(SERVED, request, answer(request))
                json.loads(body[:length])

    return refusing(read, *seeds_of("infer"), deep=True)


def _binary(bundle: Path) -> Target:
    """JSON with binary tensors behind it; the first two bytes are the length of the JSON."""
    answer = _answerer(bundle)

    def read(data: bytes) -> None:
        request = read_infer(data[2:], int.from_bytes(data[:2], "little"))
        body, length = write_infer(SERVED, request, answer(request))
        json.loads(body[:length])

    ids = np.arange(6, dtype="<i8").tobytes()
    text = struct.pack("<I", 3) + b"a b" + struct.pack("<I", 1) + b"c"
    return refusing(
        read,
        _framed([("input_ids", "INT64", [2, 3], ids), ("attention_mask", "INT64", [2, 3], ids)]),
        _framed([("text", "BYTES", [2], text)], outputs=[{"name": "energy", "parameters": {"binary_data": True}}]),
        _framed([("x", "BF16", [2], b"\0\1\2\3"), ("y", "BOOL", [2, 1], b"\0\1")], parameters={"timeout": 5}),
    )


def _framed(tensors: list[tuple[str, str, list[int], bytes]], **more: Any) -> bytes:
    """The length of the JSON, the JSON, and the tensors."""
    inputs = [
        {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(data)}}
        for name, datatype, shape, data in tensors
    ]
    head = json.dumps({"inputs": inputs, **more}).encode()
    return len(head).to_bytes(2, "little") + head + b"".join(data for *_, data in tensors)


def _grpc(bundle: Path) -> Target:
    """Messages as gRPC hands them over."""
    from google.protobuf.message import DecodeError
    from hydrant.serving.grpc_front import fill_message, message_classes, read_message

    answer, known = _answerer(bundle), message_classes()
    asks, answers = known["ModelInferRequest"], known["ModelInferResponse"]

    def read(data: bytes) -> None:
        try:
            message = asks.FromString(data)
        except DecodeError as error:
            raise InputError("the message is none") from error
        request = read_message(message)
        answers.FromString(fill_message(answers(), SERVED, request, answer(request)).SerializeToString())

    raw = asks(model_name="tiny", id="a", raw_input_contents=[np.arange(6, dtype="<i8").tobytes()] * 2)
    typed = asks(model_name="tiny")
    for name in ("input_ids", "attention_mask"):
        raw.inputs.add(name=name, datatype="INT64", shape=[2, 3])
        typed.inputs.add(name=name, datatype="INT64", shape=[1, 2]).contents.int64_contents.extend([1, 2])
    texts = asks(model_name="tiny")
    texts.inputs.add(name="text", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"a b")
    texts.outputs.add(name="energy").parameters["binary_data"].bool_param = True
    return refusing(read, *(each.SerializeToString() for each in (raw, typed, texts)))


def _predict() -> Target:
    """A Content-Type on the first line, and a body behind it."""

    def read(data: bytes) -> None:
        kind, _, body = data.partition(b"\n")
        found = read_request(body, kind.decode("latin-1"), {})
        for predictor in READERS:
            with may_refuse(f"{predictor.modality} {predictor.task}"):
                inputs, shown = model_inputs(found, predictor, 10**6)  # type: ignore[arg-type]  # as much of one as is read
                assert len(inputs) == len(shown) == len(found.inputs)

    form = io.BytesIO()
    for head, data in (
        ('name="text"', b"a text"),
        ('name="image"; filename="a.png"', b"\x89PNG"),
        ("name*=UTF-8''t%65xt; filename*0=a; filename*1=b", b"c"),
        ('name="probabilities"', b"true"),
    ):
        form.write(f"--b\r\nContent-Disposition: form-data; {head}\r\n\r\n".encode() + data + b"\r\n")
    form.write(b"--b--\r\n")
    bodies = [b"application/json\n" + seed[1:] for seed in seeds_of("predict")]
    sound = {"inputs": [{"audio": base64.b64encode(b"RIFF").decode()}], "skip_invalid": True, "timeout": 2.5}
    return refusing(
        read,
        *bodies,
        b"application/json\n" + json.dumps(sound).encode(),
        b'multipart/form-data; boundary="b"\n' + form.getvalue(),
        b"image/png\n\x89PNG",
        deep=True,
    )
