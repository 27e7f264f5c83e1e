"""Fuzz targets for adapters, signatures, processors, images, audio, parts, logs, and requests."""

from __future__ import annotations

import base64
import io
import json
import shutil
import struct
from collections.abc import Callable
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from fuzz_target import CORPUS, Made, Target, may_refuse, refusing, seeds_of
from hydrant.bundle.architecture import part_of
from hydrant.bundle.head_plan import HeadPlan
from hydrant.bundle.signature import SIGNATURE, check_signature
from hydrant.bundle.staging import sha256_of
from hydrant.bundle.store import Bundle
from hydrant.data.audio import BLOCK, SoundProcessor, SpectrogramProcessor
from hydrant.data.images import ImageProcessor
from hydrant.data.raw_inputs import Sound
from hydrant.errors import InputError
from hydrant.monitoring.drift_report import drift
from hydrant.monitoring.prediction_log import Own, checked_rows, logged_rows
from hydrant.runtime.offline.shard_parts import manifest_of, merge_parts
from hydrant.runtime.prediction_counts import observed_rows
from hydrant.serving.datatypes import Tensor
from hydrant.serving.oip import InferRequest, inputs_of, outputs_of, read_infer, write_infer
from hydrant.serving.predict_request import model_inputs, read_request

PIXELS = SimpleNamespace(modality="image", channels=3, image_height=12, image_width=12)
SOUNDS = (
    (SoundProcessor, SimpleNamespace(shortest=400, input_names=("input_values",))),
    (SpectrogramProcessor, SimpleNamespace(shortest=0, input_names=("input_values",), spectrogram=(64, 16))),
)
"""Inputs of the targets' models."""
WAVES = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "feature_size": 1, "sampling_rate": 8000,
         "padding_side": "right", "padding_value": 0.0, "do_normalize": True}  # fmt: skip
SOUND_FILES = {
    "WAV": ("PCM_16", "FLOAT", "MS_ADPCM"), "FLAC": ("PCM_16",), "OGG": ("VORBIS", "OPUS"), "MP3": ("MPEG_LAYER_III",),
    "AIFF": ("PCM_16",), "AU": ("ULAW",), "CAF": ("ALAC_16",),
}  # fmt: skip
"""Audio formats and their sample encodings."""


def file_targets(place: Path) -> dict[str, Made]:
    """Targets for files, by name."""
    return {
        "adapter": partial(_adapter, place, "adapter_config.json", True),
        "adapter-weights": partial(_adapter, place, "adapter_model.safetensors", False),
        "image-processor": partial(_image_processor, place / "images"),
        "sound-processor": partial(_sound_processor, place / "sounds"), "image": partial(_image, place / "image"),
        "sound": partial(_sound, place / "sound"), "signature": partial(_signature, place),
        "trust": partial(_trust, place), "part": partial(_part, place / "parts"), "log": partial(_log, place),
    }  # fmt: skip


def _bytes(data: Any) -> bytes:
    return json.dumps(data).encode()


def _adapter(place: Path, file: str, deep: bool) -> Target:
    """PEFT adapter with one fuzzed file; its updates are merged, and kept as low-rank updates."""
    import torch
    from hydrant.fusion.low_rank import merged, stacked_updates
    from hydrant.models.checkpoint import load_model
    from hydrant.models.family_registry import architecture_of, read_weights
    from hydrant.models.lora import read_adapter

    model = load_model(place / "checkpoint")
    base, shape = read_weights(model), architecture_of(model)
    plan = HeadPlan.all_heads(shape.family, shape.layers, shape.heads, 1)
    folder = shutil.copytree(place / "adapter", place / f"adapter-{file}", dirs_exist_ok=True)
    seed = (folder / file).read_bytes()

    def read(data: bytes) -> None:
        (folder / file).write_bytes(data)
        adapter = read_adapter(folder, model)
        ranks = {name.rpartition(".")[0]: len(update.down) for name, update in adapter.updates.items()}
        attention = {name: rank for name, rank in ranks.items() if part_of(name) == "attention"}
        forms = {
            "merge": lambda: merged(base, adapter),
            "keep": lambda: stacked_updates(shape, plan, [adapter], attention),
        }
        for form, weights in forms.items():
            with may_refuse(form):
                for name, tensor in weights().items():
                    assert torch.isfinite(tensor).all(), name

    more = {"rank_pattern": {"query": 1, r"layer.1.\w+": 1}, "alpha_pattern": {"(?:query|value)": 0.5}}
    return refusing(read, seed, *([_bytes(json.loads(seed) | more)] if deep else []), deep=deep)


def _image_processor(folder: Path) -> Target:
    folder.mkdir(exist_ok=True)
    picture = np.full((5, 7, 3), 200, np.uint8)

    def read(data: bytes) -> None:
        (folder / "preprocessor_config.json").write_bytes(data)
        processor = ImageProcessor(folder, PIXELS)
        pixels = processor.collate(processor.encode([picture]))["pixel_values"]
        assert pixels.shape == (1, 3, 12, 12)
        assert np.isfinite(pixels).all()

    return refusing(read, *seeds_of("processor"), deep=True)


def _sound_processor(folder: Path) -> Target:
    folder.mkdir(exist_ok=True)
    samples = np.sin(np.arange(800, dtype=np.float32))
    bands = {"feature_extractor_type": "ASTFeatureExtractor", "feature_size": 1, "sampling_rate": 8000, "mean": -4.2,
             "num_mel_bins": 16, "max_length": 64, "do_normalize": True, "std": 4.5, "padding_value": 0.0}  # fmt: skip

    def read(data: bytes) -> None:
        (folder / "preprocessor_config.json").write_bytes(data)
        for make, spec in SOUNDS:
            with may_refuse(make.__name__):
                processor = make(folder, spec)
                tensors = processor.collate(processor.encode([Sound(samples, processor.rate)]))
                assert all(np.isfinite(each).all() for each in tensors.values())

    return refusing(read, _bytes(WAVES), _bytes(bands), deep=True)


def _image(folder: Path) -> Target:
    """Image file, as sent by a client."""
    folder.mkdir(exist_ok=True)
    (folder / "preprocessor_config.json").write_bytes(seeds_of("processor")[-1])
    processor = ImageProcessor(folder, PIXELS)

    def read(data: bytes) -> None:
        assert np.isfinite(processor.encode([data])[0].arrays["pixel_values"]).all()

    return refusing(read, *seeds_of("png"), *seeds_of("jpeg"))


def _sound(folder: Path) -> Target:
    """Audio file, as sent by a client."""
    import soundfile

    folder.mkdir(exist_ok=True)
    (folder / "preprocessor_config.json").write_bytes(_bytes(WAVES))
    make, spec = SOUNDS[0]
    processor = make(folder, spec)

    def frames(data: bytes) -> int:
        """Number of frames, independent of the header."""
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            return sum(takewhile(bool, (len(file.read(BLOCK, always_2d=True)) for _ in count())))

    def read(data: bytes) -> None:
        samples = processor.encode([data])[0].arrays["input_values"]
        assert np.isfinite(samples).all()
        assert len(samples) == frames(data)

    def written(kind: str, samples: str, channels: int = 1, loudest: float = 0.5) -> bytes:
        file, wave = io.BytesIO(), loudest * np.cos(np.arange(960, dtype=np.float32) / 5) ** 2
        soundfile.write(file, np.stack([wave] * channels, axis=1), processor.rate, samples, format=kind)
        return file.getvalue()

    plain = [written(kind, samples) for kind, forms in SOUND_FILES.items() for samples in forms]
    cut, loud = written("MP3", "MPEG_LAYER_III")[:-100], written("WAV", "FLOAT", loudest=3e38)
    return refusing(read, *plain, written("WAV", "PCM_U8", channels=2), cut, loud)


def _signed(place: Path, name: str) -> Bundle:
    """Bundle signed by the seeds."""
    folder = place / "signed" / name
    shutil.copytree(CORPUS.parent / "bundle", folder, dirs_exist_ok=True)
    return Bundle.open(folder)


def _signature(place: Path) -> Target:
    """Signature, checked with a key if the first byte is ``k``, else with an issuer."""
    bundle = _signed(place, "signature")

    def read(data: bytes) -> None:
        (bundle.path / SIGNATURE).write_bytes(data[1:])
        trusted = "trust.pub" if data[:1] == b"k" else "trust.pem"
        with may_refuse(f"check by {trusted}"):
            check_signature(bundle, CORPUS.parent / trusted)

    return refusing(read, *seeds_of("signature"), deep=True)


def _trust(place: Path) -> Target:
    """Trusted public key or certificates, checked against signatures of both kinds."""
    bundle = _signed(place, "trust")
    file = place / "signed" / "trusted.pem"
    signatures = {name: (CORPUS / "signature" / name).read_bytes()[1:] for name in ("key", "certificate")}

    def read(data: bytes) -> None:
        file.write_bytes(data)
        for by, signature in signatures.items():
            (bundle.path / SIGNATURE).write_bytes(signature)
            with may_refuse(f"check signature by {by}"):
                check_signature(bundle, file)

    return refusing(read, *seeds_of("trust"))


def _part(folder: Path) -> Target:
    """Manifest of a part of a prediction, read when parts are merged."""
    folder.mkdir(exist_ok=True)
    rows = folder / "rows.jsonl"
    rows.write_text('{"index": 0, "label": "a"}\n')
    digest = sha256_of(rows)
    facts = {"schema": 1, "job": {"inputs": "x", "backend": "onnxruntime"}, "shard": "1/1", "total": 1, "failed": 0,
             "sha256": {"rows": digest}, "errors": None}  # fmt: skip
    with_errors = {**facts, "sha256": {"rows": digest, "errors": digest}, "errors": "rows.jsonl"}
    of_three = {**with_errors, "shard": "2/3"}

    def read(data: bytes) -> None:
        manifest_of(rows).write_bytes(data)
        for errors in (None, folder / "errors.jsonl"):
            with may_refuse("merge with failed rows apart" if errors else "merge"):
                merge_parts([rows], folder / "all.jsonl", errors)

    return refusing(read, _bytes(facts), _bytes(with_errors), _bytes(of_three), deep=True)


def _log(place: Path) -> Target:
    """Log of predictions, compared with the calibration examples."""
    bundle, file = Bundle.open(place / "bundle"), place / "log.jsonl"
    row = {"index": 0, "label": "LABEL_1", "confidence": 0.9, "predictive_entropy": 0.3, "abstain": False,
           "out_of_distribution": True}  # fmt: skip
    rows = [row, {**row, "label": "LABEL_0", "confidence": 0.1, "abstain": True}, {"index": 2, "error": "empty"}]
    spans = [{"spans": [row, row]}, {"spans": []}]
    labels = [{**row, "labels": [{"label": "LABEL_0", "probability": 0.7}]}, {**row, "labels": []}]
    names = ["predictive_entropy", "abstain"]

    def read(data: bytes) -> None:
        file.write_bytes(data)
        for task in ("tokens", "multi_label"):
            with may_refuse(f"read for {task}"):
                placed = list(checked_rows(logged_rows(file), Own(task, frozenset(bundle.labels))))
                observed_rows([row for row, _ in placed], names, [where for _, where in placed])
        json.dumps(drift(bundle, file, window=100).to_json(), allow_nan=False)

    return refusing(read, *(b"\n".join(map(_bytes, each)) for each in (rows, spans, labels)), deep=True)


READERS = [
    SimpleNamespace(modality=modality, task=task)
    for modality, task in (("text", "classification"), ("text", "tokens"), ("image", "classification"), ("audio", ""))
]
"""Predictors of ``/predict``, with the attributes that its inputs depend on."""


def request_targets(place: Path) -> dict[str, Made]:
    """Targets for requests, by name."""
    return {
        "infer": partial(_infer, place),
        "binary": partial(_binary, place / "bundle"),
        "grpc": partial(_grpc, place / "bundle"),
        "predict": _predict,
    }


SERVED: Any = SimpleNamespace(name="tiny", version="1")


def _answerer(bundle: Path) -> Callable[[InferRequest], tuple[Tensor, ...]]:
    """Function that prepares a request's inputs and selects outputs of an empty prediction."""
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
    """JSON request to a text model and an image model."""
    answers = {name: _answerer(place / name) for name in ("bundle", "pictures")}

    def read(data: bytes) -> None:
        request = read_infer(data)
        for name, answer in answers.items():
            with may_refuse(f"ask {name}"):
                body, length = write_infer(SERVED, request, answer(request))
                json.loads(body[:length])

    return refusing(read, *seeds_of("infer"), deep=True)


def _binary(bundle: Path) -> Target:
    """JSON with binary tensors; the first two bytes are the length of the JSON."""
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
    """Length of the JSON, the JSON, and the tensors."""
    inputs = [
        {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(data)}}
        for name, datatype, shape, data in tensors
    ]
    head = json.dumps({"inputs": inputs, **more}).encode()
    return len(head).to_bytes(2, "little") + head + b"".join(data for *_, data in tensors)


def _grpc(bundle: Path) -> Target:
    """Serialised gRPC messages."""
    from google.protobuf.message import DecodeError
    from hydrant.serving.grpc_front import fill_message, message_classes, read_message

    answer, classes = _answerer(bundle), message_classes()
    asks, answers = classes["ModelInferRequest"], classes["ModelInferResponse"]

    def read(data: bytes) -> None:
        try:
            message = asks.FromString(data)
        except DecodeError as error:
            raise InputError("not a message") from error
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
    """Content-Type on the first line, then the body."""

    def read(data: bytes) -> None:
        kind, _, body = data.partition(b"\n")
        parsed = read_request(body, kind.decode("latin-1"), {})
        for predictor in READERS:
            with may_refuse(f"{predictor.modality} {predictor.task}"):
                inputs, shown = model_inputs(parsed, predictor, 10**6)  # type: ignore[arg-type]
                assert len(inputs) == len(shown) == len(parsed.inputs)

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
