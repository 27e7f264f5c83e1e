"""Spectrograms of one size: beside transformers' own feature extractors, and models that read them."""

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hydrant
import numpy as np
import oracle
import pytest
import soundfile
import torch
import transformers
from conftest import made_once
from hydrant.data.audio import SpectrogramProcessor
from hydrant.data.processor import from_transformers
from hydrant.errors import InputError
from hydrant.fusion import TracedClassifier
from hydrant.models.tracing.members import trace
from hydrant.models.tracing.traced_model import prepared
from hypothesis import given, settings
from hypothesis import strategies as st
from support import stdout_of
from traced_support import make, plan_of, without

RATE = 16000
FRAMES, BANDS = 40, 16
SOUNDS = {
    "ast": transformers.ASTFeatureExtractor(num_mel_bins=BANDS, max_length=FRAMES, mean=-3.0, std=2.5),
    "whisper": transformers.WhisperFeatureExtractor(feature_size=BANDS, chunk_length=1),
}
READS = {
    "ast": SimpleNamespace(modality="audio", input_names=("input_values",), spectrogram=(FRAMES, BANDS)),
    "whisper": SimpleNamespace(modality="audio", input_names=("input_features",), spectrogram=(BANDS, 100)),
}


def processor(kind: str, **changes: Any) -> SpectrogramProcessor:
    extractor = copy.deepcopy(SOUNDS[kind])
    for name, value in changes.items():
        setattr(extractor, name, value)
    converted = from_transformers(extractor, READS[kind])
    assert isinstance(converted, SpectrogramProcessor)
    return converted


def tone(samples: int, seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).standard_normal(samples) * 0.02
    return (0.3 * np.sin(np.arange(samples) * (0.1 + 0.2 * (seed % 3))) + noise).astype(np.float32)


@settings(deadline=None, max_examples=15)
@given(kind=st.sampled_from(sorted(SOUNDS)), samples=st.integers(400, 18000), normalise=st.booleans())
def test_tensors_are_those_of_transformers(kind: str, samples: int, normalise: bool) -> None:
    extractor = copy.deepcopy(SOUNDS[kind])
    changes = {"do_normalize": normalise} if kind == "ast" else {}
    vars(extractor).update(changes)
    sound = tone(samples, samples)
    [name] = READS[kind].input_names
    wanted = extractor([sound], sampling_rate=RATE, return_tensors="np")[name]
    ours = processor(kind, **changes)
    tensors = ours.collate(ours.encode([sound]))[name]
    assert tensors.dtype == np.float32
    np.testing.assert_allclose(tensors, wanted, atol=1e-4)


def test_a_longer_sound_is_cut_and_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    ours = processor("ast")
    most = 39 * 160 + 400
    cut = ours.encode([tone(most + 159, 0), tone(most + 160, 0), tone(3 * most, 0)])
    assert [item.truncated for item in cut] == [False, True, True]
    (record,) = caplog.records
    assert "input 1" in record.getMessage()


@pytest.mark.parametrize("kind", sorted(SOUNDS))
def test_of_hours_of_sound_no_more_is_decoded_than_the_model_reads(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sound = np.zeros(601 * RATE, np.float32)
    sound[: 2 * RATE] = tone(2 * RATE, 0)
    soundfile.write(tmp_path / "long.wav", sound, RATE, "FLOAT")
    decoded: list[int] = []
    read = soundfile.SoundFile.read

    def counted(self: Any, *given: Any, **options: Any) -> np.ndarray:
        found: np.ndarray = read(self, *given, **options)
        decoded.append(len(found))
        return found

    monkeypatch.setattr(soundfile.SoundFile, "read", counted)
    short, *long = processor(kind).encode([sound[: 2 * RATE], sound, tmp_path / "long.wav"])
    assert sum(decoded) <= RATE + 1
    for found in long:
        assert found.truncated
        for name, values in found.arrays.items():
            np.testing.assert_array_equal(values, short.arrays[name])


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [("ast", {"max_length": 41}, r"41, 16"), ("whisper", {"hop_length": 80}, "hop_length")],
)
def test_settings_that_would_make_something_else_are_refused(kind: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        processor(kind, **changes)


def make_bundle(root: Path) -> None:
    """An AST-shaped model in ``out``, fused by the command line, and exported."""
    model = make("ast")
    model.save_pretrained(root / "model")
    SOUNDS["ast"].save_pretrained(root / "model")
    plan_of(trace(prepared(copy.deepcopy(model))), fork=0).save(root / "plan.json")
    stdout_of("fuse", root / "model", "--traced", "--plan", root / "plan.json", "-o", root / "out")
    hydrant.export_onnx(root / "out")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of an AST-shaped model, and its plan."""
    return made_once(tmp_path_factory, "spectrograms", make_bundle)


def test_a_graph_of_spectrograms_is_the_original_without_these_heads(folder: Path) -> None:
    sounds, model = [tone(500 + 900 * seed, seed) for seed in range(5)], make("ast")
    values = SOUNDS["ast"](sounds, sampling_rate=RATE, return_tensors="pt")["input_values"]
    plan = hydrant.HeadPlan.load(folder / "plan.json")
    names = ["audio_spectrogram_transformer.layers.0.attention.o_proj"]
    with torch.no_grad():
        logits = [without(model, names, keep, 4)(values).logits.double().numpy() for keep in plan.members]
    wanted = oracle.uncertainty(oracle.softmax(np.stack(logits)))
    assert float(np.abs(logits[0] - logits[1]).max()) > 1e-4  # heads matter, so agreement means something
    for backend in ("torch", "onnxruntime", "openvino"):
        with hydrant.load(folder / "out", backend) as predictor:
            found, ready = predictor.predict(sounds), predictor.predict({"input_values": values.numpy()})
            with pytest.raises(InputError, match=r"float32 \[5, 40\]; expected float32 \[batch, 40, 16\]"):
                predictor.predict({"input_values": values.numpy()[..., 0]})
        for name, expected in wanted.items():
            np.testing.assert_allclose(getattr(found, name), expected, atol=2e-5)
            np.testing.assert_allclose(getattr(ready, name), expected, atol=2e-5)


def test_a_whisper_shaped_model_reads_its_own_spectrograms(tmp_path: Path) -> None:
    model = make("whisper")
    ensemble = hydrant.fuse(model, plan_of(trace(prepared(copy.deepcopy(model)))), traced=True)
    assert isinstance(ensemble, TracedClassifier)
    assert (ensemble.architecture.input_names, ensemble.architecture.spectrogram) == (("input_features",), (16, 100))
    path = hydrant.save_bundle(ensemble, tmp_path / "out", SOUNDS["whisper"])
    sounds = [tone(1000, 0), tone(20000, 1)]
    values = SOUNDS["whisper"](sounds, sampling_rate=RATE, return_tensors="pt")["input_features"]
    names = [f"encoder.layers.{layer}.self_attn.out_proj" for layer in range(2)]
    with torch.no_grad():
        members = [without(model, names, keep, 4)(values).logits.double().numpy() for keep in ensemble.plan.members]
    wanted = oracle.uncertainty(oracle.softmax(np.stack(members)))
    with hydrant.load(path, "torch") as predictor:
        np.testing.assert_allclose(predictor.predict(sounds).probabilities, wanted["probabilities"], atol=2e-5)
