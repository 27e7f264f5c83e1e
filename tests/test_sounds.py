"""Sounds: the feature extractor beside transformers' own, what may be given, and traced models that read them."""

import copy
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import oracle
import pytest
import torch
import transformers
from conftest import made_once
from hydrant.bundle.store import Bundle
from hydrant.data.audio import SoundProcessor
from hydrant.data.examples import read_examples
from hydrant.data.processor import from_transformers
from hydrant.errors import InputError
from hydrant.fusion import TracedClassifier
from hydrant.models.tracing.members import trace
from hydrant.models.tracing.traced_model import prepared
from hypothesis import given, settings
from hypothesis import strategies as st
from support import predicted, stdout_of
from traced_support import by_hooks, make, plan_of, without

soundfile = pytest.importorskip("soundfile")

RATE = 16000


class Spec:
    """What a processor asks of a model."""

    modality, shortest, input_names, spectrogram = "audio", 40, ("input_values", "attention_mask"), ()


def processor(**changes: Any) -> SoundProcessor:
    converted = from_transformers(transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True, **changes), Spec())
    assert isinstance(converted, SoundProcessor)
    return converted


def noise(samples: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(samples) * 0.1).astype(np.float32)


def tone(kind: int, seed: int) -> np.ndarray:
    """A tone of one of three heights, with noise."""
    samples = 400 + 40 * (seed % 5)
    return (0.3 * np.sin(np.arange(samples) * (kind + 1) * 0.2) + noise(samples, seed)).astype(np.float32)


@settings(deadline=None, max_examples=20)
@given(lengths=st.lists(st.integers(40, 500), min_size=1, max_size=4), normalise=st.booleans())
def test_tensors_are_those_of_transformers(lengths: list[int], normalise: bool) -> None:
    sounds = [noise(length, seed) + 0.5 for seed, length in enumerate(lengths)]
    extractor = transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True, do_normalize=normalise)
    wanted = extractor(sounds, padding=True, sampling_rate=RATE, return_tensors="np")
    ours = processor(do_normalize=normalise)
    tensors = ours.collate(ours.encode(sounds))
    np.testing.assert_allclose(tensors["input_values"], wanted["input_values"], atol=3e-6)
    np.testing.assert_array_equal(tensors["attention_mask"], wanted["attention_mask"])


def test_a_sound_may_be_given_in_many_ways(tmp_path: Path) -> None:
    sound = np.round(noise(400) * 2**15) / 2**15  # as 16 bits hold it
    for name in ("a.wav", "a.flac"):
        soundfile.write(tmp_path / name, sound, RATE)
    soundfile.write(tmp_path / "two.wav", np.stack([sound, -sound], axis=1), RATE)
    content = io.BytesIO()
    soundfile.write(content, sound, RATE, format="FLAC")
    ways: list[Any] = [
        sound, sound.tolist(), torch.from_numpy(sound), tmp_path / "a.wav", str(tmp_path / "a.flac"),
        content.getvalue(), hydrant.data.raw_inputs.Sound(sound, RATE),
    ]  # fmt: skip
    ours = processor()
    for way, found in zip(ways, ours.encode(ways), strict=True):
        [wanted] = ours.encode([sound])
        np.testing.assert_allclose(
            found.arrays["input_values"], wanted.arrays["input_values"], 0, 2e-6, err_msg=f"{way}"
        )
    mean = processor(do_normalize=False).encode([tmp_path / "two.wav"])[0].arrays["input_values"]
    np.testing.assert_allclose(mean, 0, atol=1e-4)  # of both channels


@pytest.mark.parametrize(("sound", "message"), [
    (noise(39), "input 0 has 39 samples"),
    (np.zeros(80, np.int16), r"input 0 is a ndarray, int16 \[80\]"),
    (np.full(80, np.nan, np.float32), "input 0 holds NaN or infinity"),
    ("no/such.wav", "sound no/such.wav"),
    (b"RIFFnothing", "cannot read input 0"),
    (hydrant.data.raw_inputs.Sound(noise(80), 8000), "input 0 has 8000 samples a second"),
])  # fmt: skip
def test_what_is_no_sound_for_the_model_is_refused(sound: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        processor().encode([sound])


def test_a_small_file_fills_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence of many channels packs well: one of another rate is never decoded, and channels become one by parts."""
    sizes: list[int] = []
    read = soundfile.SoundFile.read

    def counted(self: Any, *given: Any, **options: Any) -> np.ndarray:
        found: np.ndarray = read(self, *given, **options)
        sizes.append(found.size)
        return found

    monkeypatch.setattr(soundfile.SoundFile, "read", counted)
    samples = np.stack([noise(200_000, seed) for seed in range(8)], axis=1)
    files = {rate: io.BytesIO() for rate in (RATE, 655_350)}
    for rate, file in files.items():
        soundfile.write(file, samples, rate, format="FLAC")
    with pytest.raises(InputError, match="has 655350 samples a second"):
        processor().encode([files[655_350].getvalue()])
    assert sizes == []
    (found,) = processor(do_normalize=False).encode([files[RATE].getvalue()])
    np.testing.assert_allclose(found.arrays["input_values"], samples.mean(axis=1), atol=2**-15)
    assert max(sizes) <= 8 * 2**16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten sounds of each of three classes, WAV and FLAC."""
    root = tmp_path_factory.mktemp("sounds")
    for kind in range(3):
        (root / f"LABEL_{kind}").mkdir()
        for number in range(10):
            name = root / f"LABEL_{kind}" / f"{number}.{'wav' if number % 2 else 'flac'}"
            soundfile.write(name, tone(kind, number), RATE)
    return root


def test_folders_tables_and_rows_hold_sounds(folder: Path, tmp_path: Path) -> None:
    labels = ["LABEL_0", "LABEL_1", "LABEL_2"]
    examples_read = read_examples(folder, labels)
    assert len(examples_read) == 30
    assert examples_read.labels.tolist() == [0] * 10 + [1] * 10 + [2] * 10
    (folder / "table.csv").write_text("audio,label\nLABEL_1/3.wav,LABEL_1\n")
    table = read_examples(folder / "table.csv", labels)
    assert table.inputs == [folder / "LABEL_1" / "3.wav"]
    rows = [{"audio": {"array": noise(80), "sampling_rate": RATE}, "label": 2}, {"audio": noise(90), "label": 0}]
    given = read_examples(rows, labels)
    assert [item.tokens for item in processor().encode(given.inputs)] == [80, 90]
    with pytest.raises(InputError, match="holds no images or sounds"):
        list(read_examples(tmp_path, None).inputs)


def save(name: str, folder: Path) -> Path:
    """A tiny checkpoint with its feature extractor."""
    make(name).save_pretrained(folder / name)
    extractor = transformers.Wav2Vec2FeatureExtractor(return_attention_mask=name == "wav2vec2")
    extractor.save_pretrained(folder / name)
    return folder / name


def make_bundle(root: Path, data: Path) -> None:
    """A Wav2Vec2-shaped model in ``out``, planned and fused by the command line, and exported."""
    checkpoint, plan, out = save("wav2vec2", root), root / "plan.json", root / "out"
    two = ["--keep", "2", "--members", "2"]
    for arguments in (
        ["plan", checkpoint, "--traced", "--data", data, *two, "-o", plan],
        ["fuse", checkpoint, "--traced", "--plan", plan, "-o", out],
    ):
        stdout_of(*arguments)
        if arguments[0] == "plan":  # members that share no head
            chosen = hydrant.HeadPlan.load(plan)
            other = tuple(sorted({0, 1, 2, 3} - set(chosen.members[0][0])))
            replace(chosen, members=(chosen.members[0], (other,))).save(plan)
    hydrant.export_onnx(out)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> Bundle:
    """A Wav2Vec2-shaped model from plan to graph."""
    return Bundle.open(made_once(tmp_path_factory, "sounds", lambda root: make_bundle(root, folder)) / "out")


def test_a_graph_of_sounds_is_the_original_under_hooks(bundle: Bundle) -> None:
    sounds = [tone(seed % 3, seed) for seed in range(6)]
    prepared_sounds = processor().collate(processor().encode(sounds))
    inputs = {name: torch.from_numpy(array) for name, array in prepared_sounds.items()}
    members = oracle.softmax(by_hooks("wav2vec2", make("wav2vec2"), bundle.plan(), inputs))
    wanted = oracle.uncertainty(members)
    for backend in ("torch", "onnxruntime", "openvino"):
        with hydrant.load(bundle, backend) as predictor:
            assert predictor.modality == "audio"
            found, alone = predictor.predict(sounds), [predictor.predict([sound]) for sound in sounds]
        for name, values in wanted.items():
            np.testing.assert_allclose(getattr(found, name), values, atol=2e-5)
            each = [getattr(one, name)[0] for one in alone]
            np.testing.assert_allclose(each, values, atol=2e-5)  # padding says nothing
    assert np.abs(members[0] - members[1]).max() > 1e-4  # heads matter, so agreement means something


def test_a_pipeline_of_sounds_answers_as_transformers(folder: Path, tmp_path: Path) -> None:
    labels = [f"LABEL_{index}" for index in range(3)]
    plan = hydrant.HeadPlan("wav2vec2", 1, 4, (((0, 1, 2, 3),),), "all")
    whole = hydrant.fuse(make("wav2vec2"), plan, traced=True)
    extractor = transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True)
    single = hydrant.save_bundle(whole, tmp_path / "single", extractor)
    theirs = transformers.pipeline("audio-classification", model=make("wav2vec2"), feature_extractor=extractor)
    given = [tone(0, 1), {"raw": tone(1, 2), "sampling_rate": RATE}]
    with hydrant.pipeline(single, backend="torch") as ours:
        assert ours.task == "audio-classification"
        pairs = [(ours(given[0]), theirs(given[0])), (ours(given[0], top_k=2), theirs(given[0], top_k=2))]
        pairs += zip(ours(given), theirs([tone(0, 1), {"raw": tone(1, 2), "sampling_rate": RATE}]), strict=True)
        assert len(ours(folder / "LABEL_0" / "0.flac")) == len(labels)
    for found, wanted in pairs:
        assert [answer["label"] for answer in found] == [answer["label"] for answer in wanted]
        np.testing.assert_allclose([one["score"] for one in found], [one["score"] for one in wanted], atol=1e-5)
        assert "mutual_information" in found[0]


def test_a_model_that_padding_changes_reads_equal_sounds_together(tmp_path: Path) -> None:
    """HuBERT-shaped: its first norm is over time, so that zeros behind a sound would change its answer."""
    model = make("hubert")
    ensemble = hydrant.fuse(model, plan_of(trace(prepared(model))), traced=True)
    assert isinstance(ensemble, TracedClassifier)
    assert ensemble.architecture.input_names == ("input_values",)
    extractor = transformers.Wav2Vec2FeatureExtractor(return_attention_mask=False)
    path = hydrant.save_bundle(ensemble, tmp_path / "out", extractor)
    sounds = [tone(seed % 3, seed) for seed in range(7)]
    together = predicted(path, sounds, "torch")
    for index, sound in enumerate(sounds):
        values = extractor([sound], sampling_rate=RATE, return_tensors="pt")["input_values"]
        members = by_hooks("hubert", model, ensemble.plan, {"input_values": values})
        wanted = oracle.uncertainty(oracle.softmax(members))
        np.testing.assert_allclose(together.probabilities[index], wanted["probabilities"][0], atol=2e-5)


PROJECTIONS = {
    "wavlm": "wavlm.encoder.layers.{}.attention.out_proj",
    "sew": "sew.encoder.layers.{}.attention.out_proj",
    "sew-d": "sew_d.encoder.encoder.layer.{}.attention.output.dense",
}


@pytest.mark.parametrize("name", PROJECTIONS)
def test_parts_that_are_written_out_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """Attention that hides its projections, and encoders that pad: beside the untouched model with zeroed weights."""
    model = make(name)
    ensemble = hydrant.fuse(model, plan_of(trace(prepared(copy.deepcopy(model))), fork=0), traced=True)
    assert isinstance(ensemble, TracedClassifier)
    assert ensemble.architecture.form == ("masked" if name == "wavlm" else "sliced")
    assert [block.groups for block in ensemble.architecture.blocks] == [4] * len(ensemble.plan.members[0])
    outputs = [PROJECTIONS[name].format(layer) for layer in range(ensemble.plan.layers)]
    members = [without(model, outputs, keep, 4) for keep in ensemble.plan.members]
    path = hydrant.save_bundle(ensemble, tmp_path / "out", tensors_only=True)
    runs = [hydrant.load(path, "torch")]
    if name == "sew":  # the census exports the others, too
        hydrant.export_onnx(path)
        runs.append(hydrant.load(path, "onnxruntime"))
    for samples in (117, 127, 171, 602):  # even and odd numbers of moments
        values = torch.from_numpy(np.stack([tone(seed, seed)[:100].repeat(7)[:samples] for seed in range(3)]))
        given = {"input_values": values}
        if "attention_mask" in ensemble.architecture.input_names:
            given["attention_mask"] = (torch.arange(samples) < torch.tensor([[samples], [80], [90]])).long()
        with torch.no_grad():
            logits = np.stack([member(**given).logits.double().numpy() for member in members])
        wanted = oracle.uncertainty(oracle.softmax(logits))
        assert float(np.abs(logits[0] - logits[1]).max()) > 1e-4
        for predictor in runs:
            prediction = predictor.predict({key: tensor.numpy() for key, tensor in given.items()})
            for key, values in wanted.items():
                np.testing.assert_allclose(getattr(prediction, key), values, atol=2e-5)
