"""Sound → waveform or spectrogram tensor, as the feature extractors of Wav2Vec2, AST and Whisper, without torch."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np

from ..errors import InputError, cut, require
from .images import has_image_name
from .raw_inputs import Sound, Unusable, as_array
from .specs import InputSpec, processor_settings
from .tensors import EncodedTensors, stacked

log = logging.getLogger(__name__)
Count = Annotated[int, msgspec.Meta(ge=1, le=10**6)]
Zero = Annotated[float, msgspec.Meta(ge=0, le=0)]
ENDINGS = (".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".au")
MOST_SECONDS = 600  # per sound: attention compares all pairs of moments, and would fill the memory
BLOCK = 2**16  # frames decoded at a time: a small file may hold many silent channels
WIDTH, HOP = 400, 160  # samples of a frame and between frame starts: 25 and 10 ms at 16 kHz
EXPECTED = "a path, the bytes of a sound file, or an array of floats [samples]"


class SoundSettings(msgspec.Struct, frozen=True):
    """Settings of a supported feature extractor."""

    feature_extractor_type: Literal["Wav2Vec2FeatureExtractor"]
    sampling_rate: Count
    do_normalize: bool = True
    feature_size: Literal[1] = 1
    padding_side: Literal["right"] = "right"
    padding_value: Zero = 0


class SoundProcessor:
    """Prepares sounds for one model. Safe to use from many threads."""

    def __init__(self, folder: Path, spec: InputSpec) -> None:
        settings = processor_settings(folder, SoundSettings)
        self.rate, self._normalise = settings.sampling_rate, settings.do_normalize
        self._shortest, self._masked = spec.shortest, "attention_mask" in spec.input_names

    def encode(self, sounds: Sequence[Any], first: int = 0) -> list[EncodedTensors]:
        """Prepare paths, bytes of sound files, arrays of floats [samples] (at the model's rate), or :class:`Sound`."""
        return [EncodedTensors({"input_values": self._prepared(*each)}) for each in enumerate(sounds, start=first)]

    def collate(self, items: Sequence[EncodedTensors]) -> dict[str, np.ndarray]:
        """``input_values`` [B, samples] float32, padded with zeros, and the mask [B, samples] of models with one."""
        lengths = np.array([item.tokens for item in items])
        values = np.zeros((len(items), lengths.max()), np.float32)
        for row, item in zip(values, items, strict=True):
            row[: item.tokens] = item.arrays["input_values"]
        mask = (np.arange(lengths.max()) < lengths[:, None]).astype(np.int64)
        return {"input_values": values, **({"attention_mask": mask} if self._masked else {})}

    def describe(self) -> dict[str, Any]:
        """Preprocessing settings, for other runtimes that prepare the same tensors."""
        return {"modality": "audio", "sampling_rate": self.rate, "normalise": self._normalise}

    def _prepared(self, index: int, sound: Any) -> np.ndarray:
        samples, name = opened(sound, index, self.rate)
        check_samples(samples, self._shortest, name)
        if len(samples) > MOST_SECONDS * self.rate:
            raise InputError(f"{name} has {len(samples)} samples, over {MOST_SECONDS} seconds; cut it first")
        if self._normalise:
            wide = samples.astype(np.float64)  # squares of loud samples are beyond float32
            samples = (wide - wide.mean()) / np.sqrt(wide.var() + 1e-7)  # as in transformers
        return np.ascontiguousarray(samples, np.float32)


def check_samples(samples: np.ndarray, shortest: int, name: str) -> None:
    """Reject samples [samples] that are too few or not finite."""
    if len(samples) < shortest:
        raise InputError(f"{name} has {len(samples)} samples; expected at least {shortest}")
    if not np.isfinite(samples).all():
        raise InputError(f"{name} holds NaN or infinity; expected finite samples")


def _check_rate(rate: int, expected: int, name: str) -> None:
    if rate != expected:
        rates = f"{name} has {rate} samples a second, and this model reads {expected}"
        raise InputError(f"{rates}; resample it first (ffmpeg -i IN -ar {expected} OUT.wav)")


def opened(sound: Any, index: int, expected: int, most: int | None = None) -> tuple[np.ndarray, str]:
    """Samples [samples] float32 at the expected rate, and their name in messages."""
    name = f"input {index}"
    if isinstance(sound, Unusable):
        raise InputError(f"{name} {sound.reason}")
    if isinstance(sound, str | Path | bytes | bytearray):
        return _read_file(sound, name, expected, most)
    if isinstance(sound, Sound):
        _check_rate(sound.rate, expected, name)
        sound = sound.samples
    try:
        array = as_array(sound)
    except InputError:  # lists of unequal lengths
        array = np.array(None)
    if array.dtype.kind != "f" or array.ndim != 1:
        what = f"a {type(sound).__name__}, {array.dtype} {list(array.shape)}"
        raise InputError(f"{name} is {what}; expected {EXPECTED} of one channel (int16: / 32768)")
    return array[:most].astype(np.float32), name


def _read_file(sound: Any, name: str, expected: int, most: int | None) -> tuple[np.ndarray, str]:
    """Samples of a file or its bytes, averaged over channels; files at another rate are rejected undecoded."""
    soundfile = require("soundfile", "audio", "read sound files")
    in_memory = isinstance(sound, bytes | bytearray)
    called = name if in_memory else f"sound {sound}"
    try:
        if not in_memory and not Path(sound).is_file():
            raise InputError(f"{called} is not a file; expected {EXPECTED}")
        with soundfile.SoundFile(io.BytesIO(sound) if in_memory else str(sound)) as file:
            _check_rate(int(file.samplerate), expected, called)
            if most is None and file.frames > MOST_SECONDS * file.samplerate:
                raise InputError(f"{called} is longer than {MOST_SECONDS} seconds; cut it first")
            means, left = [np.zeros(0, np.float32)], sys.maxsize if most is None else most
            while len(block := file.read(min(BLOCK, left), dtype="float32", always_2d=True)):  # [frames, channels]
                means.append(block.mean(axis=1, dtype=np.float64).astype(np.float32))
                left -= len(block)
    except InputError:
        raise
    except Exception as error:  # errors of libsndfile, and of Path for invalid paths
        raise InputError(f"cannot read {called}: {cut(error, 100)}; expected a complete sound file") from error
    return np.concatenate(means), called


def has_sound_name(path: str | Path) -> bool:
    """Return True if the name ends like that of a sound."""
    return Path(path).suffix.lower() in ENDINGS


def has_media_name(path: str | Path) -> bool:
    """Return True if the name ends like that of an image or a sound."""
    return has_sound_name(path) or has_image_name(path)


def kaldi_bands(samples: np.ndarray, rate: int, bands: int) -> np.ndarray:
    """Natural logarithms of the energies in Kaldi's mel bands: [samples] → [frames, bands] float32."""
    frames = np.lib.stride_tricks.sliding_window_view(samples.astype(np.float64), WIDTH)[::HOP]
    frames = frames - frames.mean(axis=1, keepdims=True)
    before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    energies = _energies((frames - 0.97 * before) * np.hanning(WIDTH), 512)
    edges = np.linspace(_kaldi_mel(20.0), _kaldi_mel(rate // 2), bands + 2)
    triangles = _triangles(_kaldi_mel(np.arange(257) * rate / 512), edges)
    return np.log(np.maximum(energies @ triangles, 1.192092955078125e-07)).astype(np.float32)


def whisper_bands(samples: np.ndarray, rate: int, bands: int) -> np.ndarray:
    """Whisper's spectrogram: [samples] → [bands, frames] float32, a frame for every :data:`HOP` samples."""
    padded = np.pad(samples.astype(np.float64), WIDTH // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, WIDTH)[::HOP][:-1]
    energies = _energies(frames * np.hanning(WIDTH + 1)[:-1], WIDTH)
    mel = np.linspace(0, 15 + np.log(8) * _STEPS, bands + 2)  # on Slaney's scale, 15 at 1000 Hz: linear below
    edges = np.where(mel < 15, 200 * mel / 3, 1000 * np.exp((mel - 15) / _STEPS))
    triangles = _triangles(np.linspace(0, rate // 2, WIDTH // 2 + 1), edges) * (2 / (edges[2:] - edges[:-2]))
    logarithms = np.log10(np.maximum(energies @ triangles, 1e-10)).T
    return ((np.maximum(logarithms, logarithms.max() - 8) + 4) / 4).astype(np.float32)


def _energies(frames: np.ndarray, length: int) -> np.ndarray:
    """Squared magnitudes of the frequencies of each frame: [frames, samples] → [frames, length / 2 + 1]."""
    return np.abs(np.fft.rfft(frames, length)) ** 2


def _triangles(places: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Weights of frequencies in bands: 1 in the middle of a band, 0 from its neighbours' on, [frequencies, bands]."""
    rows = [np.interp(places, edges[band : band + 3], (0, 1, 0)) for band in range(len(edges) - 2)]
    return np.stack(rows, axis=1)


def _kaldi_mel(hertz: float | np.ndarray) -> np.ndarray:
    return np.asarray(1127 * np.log(1 + np.asarray(hertz) / 700))


_STEPS = 27 / np.log(6.4)  # mel per factor e above 1000 Hz on Slaney's scale


class KaldiSettings(msgspec.Struct, frozen=True, tag_field="feature_extractor_type", tag="ASTFeatureExtractor"):
    """A feature extractor of AST."""

    sampling_rate: Count = 16000
    num_mel_bins: Count = 128
    max_length: Count = 1024
    do_normalize: bool = True
    mean: Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)] = -4.2677393
    std: Annotated[float, msgspec.Meta(ge=1e-6, le=1e6)] = 4.5689974
    feature_size: Literal[1] = 1
    padding_value: Zero = 0

    name: ClassVar = "kaldi"
    tensor: ClassVar = "input_values"
    keys: ClassVar = ("sampling_rate", "num_mel_bins", "max_length", "do_normalize", "mean", "std")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a spectrogram."""
        return self.max_length, self.num_mel_bins

    @property
    def most(self) -> int:
        """Maximum samples to read: enough to fill a spectrogram and to detect truncation."""
        return self.max_length * HOP + WIDTH

    def make(self, samples: np.ndarray) -> tuple[np.ndarray, bool]:
        """[frames, bands] as AST reads it, and True if samples were cut off."""
        most = (self.max_length - 1) * HOP + WIDTH
        spectrogram = kaldi_bands(samples[:most], self.sampling_rate, self.num_mel_bins)
        values = np.zeros(self.shape, np.float32)
        values[: len(spectrogram)] = spectrogram
        if self.do_normalize:
            values = (values - self.mean) / (2 * self.std)
        return values, len(samples) >= most + HOP


class WhisperSettings(msgspec.Struct, frozen=True, tag_field="feature_extractor_type", tag="WhisperFeatureExtractor"):
    """A feature extractor of Whisper."""

    sampling_rate: Count = 16000
    feature_size: Count = 80
    chunk_length: Count = 30
    hop_length: Literal[160] = 160
    n_fft: Literal[400] = 400
    padding_value: Zero = 0
    padding_side: Literal["right"] = "right"
    dither: Zero = 0

    name: ClassVar = "whisper"
    tensor: ClassVar = "input_features"
    keys: ClassVar = ("sampling_rate", "feature_size", "chunk_length")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a spectrogram."""
        return self.feature_size, self.chunk_length * self.sampling_rate // HOP

    @property
    def most(self) -> int:
        """Maximum samples to read: one more than the spectrogram covers."""
        return self.chunk_length * self.sampling_rate + 1

    def make(self, samples: np.ndarray) -> tuple[np.ndarray, bool]:
        """[bands, frames] as Whisper reads it, and True if samples were cut off."""
        most = self.chunk_length * self.sampling_rate
        filled = np.zeros(most, np.float32)
        filled[: len(samples)] = samples[:most]
        return whisper_bands(filled, self.sampling_rate, self.feature_size), len(samples) > most


class SpectrogramProcessor:
    """Prepares sounds for one spectrogram model. Safe to use from many threads."""

    def __init__(self, folder: Path, spec: InputSpec) -> None:
        self._settings = settings = processor_settings(folder, KaldiSettings | WhisperSettings)  # type: ignore[arg-type]
        if (settings.tensor, settings.shape) != (spec.input_names[0], spec.spectrogram):
            made, read = list(settings.shape), f"{spec.input_names[0]} of {list(spec.spectrogram)}"
            raise InputError(f"{folder} makes {settings.tensor} of {made}; this model reads {read}")
        self.rate: int = settings.sampling_rate
        self._warned = False

    def encode(self, sounds: Sequence[Any], first: int = 0) -> list[EncodedTensors]:
        """Prepare paths, bytes of sound files, arrays of floats [samples] (at the model's rate), or ``Sound``."""
        tensors = []
        for offset, sound in enumerate(sounds):
            samples, name = opened(sound, first + offset, self.rate, self._settings.most)
            check_samples(samples, WIDTH, name)
            values, longer = self._settings.make(samples)
            tensors.append(EncodedTensors({self._settings.tensor: np.ascontiguousarray(values, np.float32)}, longer))
            if longer and not self._warned:
                self._warned = True
                log.warning("%s is longer than the model reads; long sounds are truncated", name)
        return tensors

    def collate(self, items: Sequence[EncodedTensors]) -> dict[str, np.ndarray]:
        """One batch: ``input_values`` [B, frames, bands] (AST) or ``input_features`` [B, bands, frames] (Whisper)."""
        return stacked(items)

    def describe(self) -> dict[str, Any]:
        """Preprocessing settings, for other runtimes that prepare the same tensors."""
        settings = {key: getattr(self._settings, key) for key in self._settings.keys}
        return {"modality": "audio", "sampling_rate": self.rate, "spectrogram": self._settings.name, **settings}
