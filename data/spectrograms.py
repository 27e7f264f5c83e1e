"""Sound → spectrogram tensor of a fixed size, as ASTFeatureExtractor and WhisperFeatureExtractor, without torch.

Shorter sounds are filled with silence; longer ones are truncated, with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np

from ..errors import InputError
from .audio import Count, Zero, check_samples, opened
from .specs import InputSpec, processor_settings
from .tensors import EncodedTensors, stacked

log = logging.getLogger(__name__)
WIDTH, HOP = 400, 160  # samples of a frame and between frame starts: 25 and 10 ms at 16 kHz


def kaldi_bands(samples: np.ndarray, rate: int, bands: int) -> np.ndarray:
    """Natural logarithms of the energies in Kaldi's mel bands: [samples] → [frames, bands] float32."""
    frames = np.lib.stride_tricks.sliding_window_view(samples.astype(np.float64), WIDTH)[::HOP]
    frames = frames - frames.mean(axis=1, keepdims=True)
    before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    energies = _energies((frames - 0.97 * before) * np.hanning(WIDTH), 512)
    edges = np.linspace(_kaldi_mel(20.0), _kaldi_mel(rate // 2), bands + 2)
    triangles = _triangles(_kaldi_mel(np.arange(257) * rate / 512), edges)
    found: np.ndarray = np.log(np.maximum(energies @ triangles, 1.192092955078125e-07)).astype(np.float32)
    return found


def whisper_bands(samples: np.ndarray, rate: int, bands: int) -> np.ndarray:
    """What Whisper reads: [samples] → [bands, frames] float32, a frame for every :data:`HOP` samples."""
    padded = np.pad(samples.astype(np.float64), WIDTH // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, WIDTH)[::HOP][:-1]
    energies = _energies(frames * np.hanning(WIDTH + 1)[:-1], WIDTH)
    edges = _slaney_hertz(np.linspace(0, 15 + np.log(8) * _STEPS, bands + 2))
    triangles = _triangles(np.linspace(0, rate // 2, WIDTH // 2 + 1), edges) * (2 / (edges[2:] - edges[:-2]))
    logarithms = np.log10(np.maximum(energies @ triangles, 1e-10)).T
    found: np.ndarray = ((np.maximum(logarithms, logarithms.max() - 8) + 4) / 4).astype(np.float32)
    return found


def _energies(frames: np.ndarray, length: int) -> np.ndarray:
    """Squared magnitudes of the frequencies of each frame: [frames, samples] → [frames, length / 2 + 1]."""
    found: np.ndarray = np.abs(np.fft.rfft(frames, length)) ** 2
    return found


def _triangles(places: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Weights of frequencies in bands: 1 in the middle of a band, 0 from its neighbours' on, [frequencies, bands]."""
    rows = [np.interp(places, edges[band : band + 3], (0, 1, 0)) for band in range(len(edges) - 2)]
    return np.stack(rows, axis=1)


def _kaldi_mel(hertz: float | np.ndarray) -> np.ndarray:
    return np.asarray(1127 * np.log(1 + np.asarray(hertz) / 700))


_STEPS = 27 / np.log(6.4)  # of Slaney's scale above 1000 Hz, for each factor e


def _slaney_hertz(mel: np.ndarray) -> np.ndarray:
    """Slaney's scale: 15 mel at 1000 Hz, linear below and logarithmic above."""
    return np.where(mel < 15, 200 * mel / 3, 1000 * np.exp((mel - 15) / _STEPS))


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
        """Samples that are read: those that fill a spectrogram, and as many behind them as tell whether it is cut."""
        return self.max_length * HOP + WIDTH

    def make(self, samples: np.ndarray) -> tuple[np.ndarray, bool]:
        """[frames, bands] as AST reads it, and whether there were more."""
        most = (self.max_length - 1) * HOP + WIDTH
        found = kaldi_bands(samples[:most], self.sampling_rate, self.num_mel_bins)
        values = np.zeros(self.shape, np.float32)
        values[: len(found)] = found
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
        """Samples that are read."""
        return self.chunk_length * self.sampling_rate + 1

    def make(self, samples: np.ndarray) -> tuple[np.ndarray, bool]:
        """[bands, frames] as Whisper reads it, and whether there were more."""
        most = self.chunk_length * self.sampling_rate
        filled = np.zeros(most, np.float32)
        filled[: len(samples)] = samples[:most]
        return whisper_bands(filled, self.sampling_rate, self.feature_size), len(samples) > most


class SpectrogramProcessor:
    """Prepares sounds for one model of spectrograms. Safe to use from many threads."""

    def __init__(self, folder: Path, spec: InputSpec) -> None:
        self._settings = settings = processor_settings(folder, KaldiSettings | WhisperSettings)  # type: ignore[arg-type]
        if (settings.tensor, settings.shape) != (spec.input_names[0], spec.spectrogram):
            made, read = list(settings.shape), f"{spec.input_names[0]} of {list(spec.spectrogram)}"
            raise InputError(f"{folder} makes {settings.tensor} of {made}; this model reads {read}")
        self.rate: int = settings.sampling_rate
        self._warned = False

    def encode(self, sounds: Sequence[Any], first: int = 0) -> list[EncodedTensors]:
        """Prepare paths, bytes of sound files, arrays of floats [samples] (at the model's rate), or ``Sound``."""
        found = []
        for offset, sound in enumerate(sounds):
            samples, name = opened(sound, first + offset, self.rate, self._settings.most)
            check_samples(samples, WIDTH, name)
            values, longer = self._settings.make(samples)
            found.append(EncodedTensors({self._settings.tensor: np.ascontiguousarray(values, np.float32)}, longer))
            if longer and not self._warned:
                self._warned = True
                log.warning("%s is longer than what the model reads; the rest of it, and of others, is ignored", name)
        return found

    def collate(self, items: Sequence[EncodedTensors]) -> dict[str, np.ndarray]:
        """One batch: ``input_values`` [B, frames, bands], or of Whisper ``input_features`` [B, bands, frames]."""
        return stacked(items)

    def describe(self) -> dict[str, Any]:
        """What another runtime needs to know to prepare the same tensors."""
        known = {key: getattr(self._settings, key) for key in self._settings.keys}
        return {"modality": "audio", "sampling_rate": self.rate, "spectrogram": self._settings.name, **known}
