"""Further files that are fuzzed: adapters, signatures, keys, processors, images, sounds, manifests of parts, logs."""

from __future__ import annotations

import io
import json
import shutil
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
from hydrant.data.audio import BLOCK, SoundProcessor
from hydrant.data.images import ImageProcessor
from hydrant.data.raw_inputs import Sound
from hydrant.data.spectrograms import SpectrogramProcessor
from hydrant.monitoring.drift_report import Own, drift, rows_of_file
from hydrant.runtime.offline.shard_parts import manifest_of, merge_parts
from hydrant.runtime.prediction_counts import observed_rows

PIXELS = SimpleNamespace(modality="image", channels=3, image_height=12, image_width=12)
SOUNDS = (
    (SoundProcessor, SimpleNamespace(shortest=400, input_names=("input_values",))),
    (SpectrogramProcessor, SimpleNamespace(shortest=0, input_names=("input_values",), spectrogram=(64, 16))),
)
"""What the models of the targets read."""
WAVES = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "feature_size": 1, "sampling_rate": 8000,
         "padding_side": "right", "padding_value": 0.0, "do_normalize": True}  # fmt: skip
SOUND_FILES = {
    "WAV": ("PCM_16", "FLOAT", "MS_ADPCM"), "FLAC": ("PCM_16",), "OGG": ("VORBIS", "OPUS"), "MP3": ("MPEG_LAYER_III",),
    "AIFF": ("PCM_16",), "AU": ("ULAW",), "CAF": ("ALAC_16",),
}  # fmt: skip
"""Kinds of sound files, and how each may hold its samples."""


def given(place: Path) -> dict[str, Made]:
    """The targets, by name."""
    return {
        "adapter": partial(_adapter, place, "adapter_config.json", True),
        "adapter-weights": partial(_adapter, place, "adapter_model.safetensors", False),
        "image-processor": partial(_image_processor, place / "images"),
        "sound-processor": partial(_sound_processor, place / "sounds"),
        "image": partial(_image, place / "image"),
        "sound": partial(_sound, place / "sound"),
        "signature": partial(_signature, place),
        "trust": partial(_trust, place),
        "part": partial(_part, place / "parts"),
        "log": partial(_log, place),
    }


def _bytes(data: Any) -> bytes:
    return json.dumps(data).encode()


def _adapter(place: Path, file: str, deep: bool) -> Target:
    """A PEFT adapter, one of whose two files is what is given; its updates are merged, and kept."""
    import torch
    from hydrant.fusion.low_rank import kept_updates, merged
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
            "keep": lambda: kept_updates(shape, plan, [adapter], attention),
        }
        for form, made in forms.items():
            with may_refuse(form):
                for name, tensor in made().items():
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
    """An image file, as a client of a service may send it."""
    folder.mkdir(exist_ok=True)
    (folder / "preprocessor_config.json").write_bytes(seeds_of("processor")[-1])
    processor = ImageProcessor(folder, PIXELS)

    def read(data: bytes) -> None:
        assert np.isfinite(processor.encode([data])[0].arrays["pixel_values"]).all()

    return refusing(read, *seeds_of("png"), *seeds_of("jpeg"))


def _sound(folder: Path) -> Target:
    """A sound file, as a client of a service may send it."""
    import soundfile

    folder.mkdir(exist_ok=True)
    (folder / "preprocessor_config.json").write_bytes(_bytes(WAVES))
    make, spec = SOUNDS[0]
    processor = make(folder, spec)

    def frames(data: bytes) -> int:
        """So many there are, whatever the file says of itself."""
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
    """The bundle that the seeds of signatures sign."""
    folder = place / "signed" / name
    shutil.copytree(CORPUS.parent / "bundle", folder, dirs_exist_ok=True)
    return Bundle.open(folder)


def _signature(place: Path) -> Target:
    """Against a key and against an issuer, which a first byte tells apart: ``k`` or another."""
    bundle = _signed(place, "signature")

    def read(data: bytes) -> None:
        (bundle.path / SIGNATURE).write_bytes(data[1:])
        trusted = "trust.pub" if data[:1] == b"k" else "trust.pem"
        with may_refuse(f"check by {trusted}"):
            check_signature(bundle, CORPUS.parent / trusted)

    return refusing(read, *seeds_of("signature"), deep=True)


def _trust(place: Path) -> Target:
    """What is trusted: a public key, or certificates; against what a key and what a certificate has signed."""
    bundle = _signed(place, "trust")
    file = place / "signed" / "trusted.pem"
    signatures = {name: (CORPUS / "signature" / name).read_bytes()[1:] for name in ("key", "certificate")}

    def read(data: bytes) -> None:
        file.write_bytes(data)
        for by, signature in signatures.items():
            (bundle.path / SIGNATURE).write_bytes(signature)
            with may_refuse(f"check what a {by} signed"):
                check_signature(bundle, file)

    return refusing(read, *seeds_of("trust"))


def _part(folder: Path) -> Target:
    """The manifest of a part of a prediction, from which the parts are merged."""
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
    """A log of predictions, held against what the calibration examples looked like."""
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
                placed = list(rows_of_file(file, Own(task, frozenset(bundle.labels))))
                observed_rows([row for row, _ in placed], names, [where for _, where in placed])
        json.dumps(drift(bundle, file, window=100).to_json(), allow_nan=False)

    return refusing(read, *(b"\n".join(map(_bytes, each)) for each in (rows, spans, labels)), deep=True)
