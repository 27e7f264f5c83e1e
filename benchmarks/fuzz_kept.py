"""Further files that are fuzzed: adapters, signatures, keys, settings of processors, images, sounds, what is kept.

That is what interrupted ones go on from, the manifests of parts of a prediction, and logs of predictions.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from functools import partial
from itertools import count, takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from fuzz_target import CORPUS, Made, Target, begun, may_refuse, refusing, seeds_of
from hydrant.bundle.architecture import part_of
from hydrant.bundle.files import sha256_of
from hydrant.bundle.plan import HeadPlan
from hydrant.bundle.signature import SIGNATURE, check_signature
from hydrant.bundle.store import Bundle
from hydrant.calib.heads.search_state import SearchState
from hydrant.data.audio import BLOCK, SoundProcessor
from hydrant.data.images import ImageProcessor
from hydrant.data.records import Sound
from hydrant.data.spectrograms import SpectrogramProcessor
from hydrant.errors import InputError
from hydrant.measure.drift import drift
from hydrant.measure.log import Own, rows_of_file
from hydrant.runtime.observed import observed_rows
from hydrant.serving.offline.chunks import DESCRIPTION, Chunks, drop, folder_of
from hydrant.serving.offline.chunks import kept as kept_chunks
from hydrant.serving.offline.parts import manifest_of, merge_parts
from hydrant.serving.offline.tables import FORMS, json_line, opened, split
from hydrant.workflow import told
from hydrant.workflow.workspace import STATE, Workspace

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


def kept(place: Path) -> dict[str, Made]:
    """The targets, by name.

    Args:
        place: what ``fuzz_bundle.make_given`` made there.
    """
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
        "chunk": partial(begun, partial(_chunk, place / "chunks")),
        "job": partial(_job, place / "jobs"),
        "log": partial(_log, place),
        "making": partial(_making, place / "making"),
        "tuning": partial(_tuning, place / "tuning"),
        "search": partial(_search, place / "search"),
    }


def _bytes(data: Any) -> bytes:
    return json.dumps(data).encode()


def _adapter(place: Path, file: str, deep: bool) -> Target:
    """A PEFT adapter, one of whose two files is what is given; its updates are merged, and kept."""
    import torch
    from hydrant.families.checkpoint import load_model
    from hydrant.families.lora import read_adapter
    from hydrant.families.registry import architecture_of, read_weights
    from hydrant.fusion.lora import kept_updates, merged

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
        assert np.isfinite(processor.encode([data])[0].pixels).all()

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
        samples = processor.encode([data])[0].samples
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


TOLD = {"index": 0, "input": "a", "label": "a", "confidence": 0.9, "probabilities": {"a": 0.9, "b": 0.1},
        "prediction_set": ["a"], "abstain": False, "error": None}  # fmt: skip
"""A row of a prediction."""
JOB = {"hydrant": "0.2.0", "inputs": "x", "columns": ["text", None], "shard": "1/1", "rows": 4}
"""What the rows depend on."""


def _chunk(folder: Path) -> Target:
    """The first of two chunks that an interrupted prediction left: it is taken, or predicted again.

    All rows are then written in the form that the number of bytes chooses: seeds come in several lengths.
    """
    rows, last = range(4), {name: value for name, value in TOLD.items() if name != "error"}
    first, again, second = (b"".join(json_line({**row, "index": index}) for index, row in each) for each in (
        ((0, last), (1, {"input": "b", "error": "it is empty"})), ((0, last), (1, last)), ((2, last), (3, last)),
    ))  # fmt: skip
    chunks, forms = Chunks(folder, rows, 2), list(FORMS.values())
    folder.mkdir(exist_ok=True)
    chunks.keep(1, second)

    def read(data: bytes) -> None:
        chunks.file(0).write_bytes(data)
        missing = chunks.missing()
        assert missing in ([], [0])
        with may_refuse("go on"):
            if missing:
                raise InputError("it is predicted again")
        if missing:
            chunks.file(0).write_bytes(again)
        taken = list(chunks.answers())
        assert [row["index"] for row in taken] == list(rows)
        form = forms[len(data) % len(forms)]
        with may_refuse(f"write {form.__name__}"), opened(form, io.BytesIO(), TOLD) as table:
            split(taken, table.write, None)

    surrogate = first.replace(b'"prediction_set": ["a"]', b'"prediction_set": ["\\ud800"]')
    padded = (seed[:-1] + b" " * more + seed[-1:] for seed in (first, again, surrogate) for more in range(len(forms)))
    return Target(read, tuple(padded), deep=True)


def _job(folder: Path) -> Target:
    """What an interrupted prediction left of its work in words: chunks of other work are refused, and stay."""
    folder.mkdir(exist_ok=True)
    output = folder / "rows.jsonl"
    file = folder_of(output) / DESCRIPTION

    def read(data: bytes) -> None:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(data)
        drop(output, {**JOB, "inputs": b"no JSON"})
        assert file.exists()
        with kept_chunks(output, JOB, range(4), 2):
            assert json.loads(data).items() >= {**JOB, "chunk": 2}.items()
        assert not file.exists()

    return refusing(read, _bytes({**JOB, "chunk": 2}), _bytes({**JOB, "chunk": 3}), deep=True)


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


PLANNED = {"counts": [3, 3, 2], "fork": 2, "sequence": 9, "to_tune": False, "limit": 1.0, "candidates": 4,
           "held_out": 9, "members": 2, "layers": 3, "heads": 3, "method": "taylor", "ratio": 0.9}  # fmt: skip
FIGURES = {name: {"value": 0.5, "low": 0.4, "high": None} for name in ("accuracy", "nll", "ece")}
STAGES: dict[str, tuple[Callable[[Any], str], dict[str, Any]]] = {
    "plan": (told.planned_line, PLANNED),
    "fuse": (told.fused_line, {"parameters": 9, "parameters_ratio": 1.1}),
    "tune": (told.tuned_line, {
        "fast": False, "tuned": True, "frozen": 2, "why": "", "instead": PLANNED, "same_heads": False, "lost": "",
        "epochs": 2, "best_epoch": 1,
        "accuracy_before": 0.9, "accuracy_after": 0.95, "nll_before": 0.4, "nll_after": 0.3, "validation_examples": 9,
    }),
    "export": (told.exported_line, {"graph": "model.fp32.onnx"}),
    "calibrate": (told.calibrated_line, {
        "temperature": 0.8, "distance": {"taps": ["1.token"], "chosen": "last"},
        "thresholds": {"abstain": {"score": "confidence"}},
    }),
    "verify": (told.verified_line, {"passed": True, "backends": [{"backend": "onnxruntime", "precision": "fp32"}]}),
    "evaluate": (told.evaluated_line, {
        "examples": 9, "task": "classification", "notes": [],
        "verdict": [{"sentence": "as good"}], "models": [{"figures": FIGURES}],
    }),
}  # fmt: skip
"""Stage → what tells of it, and what it records."""


def _making(folder: Path) -> Target:
    """How far a making has come."""
    folder.mkdir(exist_ok=True)
    digests = {name: name[:1] * 64 for name in ("model", "data", "options")}

    def read(data: bytes) -> None:
        (folder / STATE).write_bytes(data)
        space = Workspace(folder, digests)
        for name in filter(space.done, STAGES):
            with may_refuse(f"tell of {name}"):
                assert space.told(name, STAGES[name][0])

    done = {name: facts for name, (_, facts) in STAGES.items()}
    seeds = [_bytes({"schema": 1, "digests": digests, "stages": each}) for each in (done, {})]
    return refusing(read, *seeds, deep=True)


def _tuning(folder: Path) -> Target:
    """How far a tuning has come."""
    import torch
    from hydrant.tuning.report import Epoch, best_epoch
    from hydrant.tuning.state import Point, State

    folder.mkdir(exist_ok=True)
    state = State(folder / "tune.part", "0" * 64)

    def new() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        module = torch.nn.Linear(3, 2)
        return module, torch.optim.AdamW(module.parameters())

    module, optimizer = new()
    history = [Epoch(0, None, 0.5, 0.8, 0.1, 1.0), Epoch(1, 0.4, 0.3, 0.9, 0.05, 1.1)]
    module(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    seeds = []
    for point in (
        Point(),
        Point(1, 0.5, 2.0, history, {name: each.detach().clone() for name, each in module.named_parameters()}),
    ):
        state.save(point, module, optimizer)
        seeds.append((folder / "tune.part").read_bytes())

    def read(data: bytes) -> None:
        (folder / "tune.part").write_bytes(data)
        module, optimizer = new()
        point = state.restore(module, optimizer)
        assert point.updates >= 0
        assert not point.history or best_epoch(point.history) >= 0
        module(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        assert all(torch.isfinite(parameter).all() for parameter in (point.best or {}).values())

    return refusing(read, *seeds)


def _search(folder: Path) -> Target:
    """How far a search for circuits has come."""
    folder.mkdir(exist_ok=True)
    file, shape = folder / "plan.json.part", (2, 3)
    layers = [{"keep": [], "scores": [[0.5, 1, -2], [0, 0, 1e-9]]}, {"keep": [[0, 2]], "scores": [[1, 2, 3]] * 2}]

    def read(data: bytes) -> None:
        file.write_bytes(data)
        found = SearchState(file, "0" * 64, shape)
        for keep in [(), ((0, 2),)]:
            assert keep not in found or np.isfinite(found[keep]).all()

    return refusing(read, _bytes({"schema": 1, "digest": "0" * 64, "layers": layers}), deep=True)
