"""Sound → spectrogram tensor of a fixed size, by ``preprocessor_config.json`` and without torch or transformers.

What ``ASTFeatureExtractor`` and ``WhisperFeatureExtractor`` of transformers do. A shorter sound is filled with silence,
a longer one cut, with a warning: these models read so many seconds and no more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, cut, listing, literal
from .audio import check_samples, opened
from .configuration import preprocessor_config
from .mel import HOP, WIDTH, kaldi_bands, whisper_bands
from .spec import InputSpec

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class EncodedSpectrogram:
    """One prepared sound.

    Attributes:
        values: as the model reads it, without the batch axis, float32.
        truncated: whether the sound was longer.
    """

    values: np.ndarray
    truncated: bool

    tokens = 1


class SpectrogramProcessor:
    """Prepares sounds for one model of spectrograms. Safe to use from many threads."""

    def __init__(self, folder: Path, spec: InputSpec) -> None:
        file = folder / "preprocessor_config.json"
        config = preprocessor_config(file, "feature extractor")
        self._name = spec.input_names[0]
        kind = config.get("feature_extractor_type") if isinstance(config, dict) else None
        if not isinstance(kind, str) or kind not in KINDS or KINDS[kind].tensor != self._name:
            raise InputError(
                f"{file} is of a {cut(kind)}; this model reads spectrograms, which hydrant makes as {listing(KINDS)} "
                f"do{' (this one reads ' + self._name + ')'}; give ready tensors, or save the model's own there"
            )
        self._kind = KINDS[kind]
        settings = {**self._kind.usual, **{name: config[name] for name in self._kind.usual if name in config}}
        _check(settings, self._kind.fixed, config, file)
        self.rate: int = settings["sampling_rate"]
        self._settings, self._told = settings, False
        shape = self._kind.shape(settings)
        if shape != spec.spectrogram:
            raise InputError(
                f"{file} makes spectrograms of {list(shape)}; expected {list(spec.spectrogram)}, which the model "
                "reads; save the feature extractor that the model was trained with"
            )

    def encode(self, sounds: Sequence[Any], first: int = 0) -> list[EncodedSpectrogram]:
        """Prepare sounds: paths, bytes of sound files, arrays of floats [samples], or :class:`data.records.Sound`.

        Arrays that come without a rate are taken to have the model's.
        """
        found = []
        for offset, sound in enumerate(sounds):
            samples, name = opened(sound, first + offset, self.rate, self._kind.most(self._settings))
            check_samples(samples, WIDTH, name)
            values, longer = self._kind.make(samples, self._settings)
            found.append(EncodedSpectrogram(np.ascontiguousarray(values, np.float32), longer))
            if longer and not self._told:
                self._told = True
                log.warning("%s is longer than what the model reads; the rest of it, and of others, is ignored", name)
        return found

    def collate(self, items: Sequence[EncodedSpectrogram]) -> dict[str, np.ndarray]:
        """One batch: ``input_values`` [B, frames, bands], or of Whisper ``input_features`` [B, bands, frames]."""
        return {self._name: np.stack([item.values for item in items])}

    def describe(self) -> dict[str, Any]:
        """What another runtime needs to know to prepare the same tensors."""
        return {"modality": "audio", "sampling_rate": self.rate, "spectrogram": self._kind.name, **self._settings}


def _check(settings: Mapping[str, Any], fixed: Mapping[str, Any], config: Mapping[str, Any], file: Path) -> None:
    """Refuse settings that hydrant does not know, or that are no numbers."""
    for name, expected in fixed.items():
        if config.get(name, expected) != expected:
            raise InputError(f"{file} has {name} = {literal(config[name])}; hydrant knows {expected} alone")
    for name, value in settings.items():
        if not _GOOD.get(name, _is_count)(value):
            raise InputError(f"{file} has {name} = {literal(value)}, which is none; save the feature extractor again")


LARGEST = 10**6
"""Beyond it, or for a divisor below its inverse, no setting makes sense."""


def _is_count(value: Any) -> bool:
    return type(value) is int and 1 <= value <= LARGEST


_GOOD: Mapping[str, Callable[[Any], bool]] = {
    "do_normalize": lambda value: type(value) is bool,
    "mean": lambda value: type(value) in (int, float) and -LARGEST <= value <= LARGEST,
    "std": lambda value: type(value) in (int, float) and 1 / LARGEST <= value <= LARGEST,
}


def _kaldi(samples: np.ndarray, settings: Mapping[str, Any]) -> tuple[np.ndarray, bool]:
    """[frames, bands] as AST reads it, and whether there were more."""
    frames = settings["max_length"]
    most = (frames - 1) * HOP + WIDTH
    found = kaldi_bands(samples[:most], settings["sampling_rate"], settings["num_mel_bins"])
    values = np.zeros((frames, settings["num_mel_bins"]), np.float32)
    values[: len(found)] = found
    if settings["do_normalize"]:
        values = (values - settings["mean"]) / (2 * settings["std"])
    return values, len(samples) >= most + HOP


def _whisper(samples: np.ndarray, settings: Mapping[str, Any]) -> tuple[np.ndarray, bool]:
    """[bands, frames] as Whisper reads it, and whether there were more."""
    most = settings["chunk_length"] * settings["sampling_rate"]
    filled = np.zeros(most, np.float32)
    filled[: len(samples)] = samples[:most]
    return whisper_bands(filled, settings["sampling_rate"], settings["feature_size"]), len(samples) > most


@dataclass(frozen=True)
class Kind:
    """How one feature extractor of transformers makes spectrograms.

    Attributes:
        name: in metadata.
        tensor: the model's input.
        usual: settings that are read, and what they are where they are not said.
        fixed: settings that have one value here.
        shape: of a spectrogram, by the settings.
        most: samples of a sound that are wanted, by the settings: those that fill a spectrogram, and as many behind
            them as tell whether there were more.
        make: samples and settings → the spectrogram, and whether the sound was longer.
    """

    name: str
    tensor: str
    usual: Mapping[str, Any]
    fixed: Mapping[str, Any]
    shape: Callable[[Mapping[str, Any]], tuple[int, ...]]
    most: Callable[[Mapping[str, Any]], int]
    make: Callable[[np.ndarray, Mapping[str, Any]], tuple[np.ndarray, bool]]


KINDS = {
    "ASTFeatureExtractor": Kind(
        "kaldi",
        "input_values",
        {"sampling_rate": 16000, "num_mel_bins": 128, "max_length": 1024, "do_normalize": True, "mean": -4.2677393,
         "std": 4.5689974},
        {"feature_size": 1, "padding_value": 0},
        lambda settings: (settings["max_length"], settings["num_mel_bins"]),
        lambda settings: settings["max_length"] * HOP + WIDTH,
        _kaldi,
    ),
    "WhisperFeatureExtractor": Kind(
        "whisper",
        "input_features",
        {"sampling_rate": 16000, "feature_size": 80, "chunk_length": 30},
        {"hop_length": HOP, "n_fft": WIDTH, "padding_value": 0, "padding_side": "right", "dither": 0},
        lambda settings: (settings["feature_size"], settings["chunk_length"] * settings["sampling_rate"] // HOP),
        lambda settings: settings["chunk_length"] * settings["sampling_rate"] + 1,
        _whisper,
    ),
}  # fmt: skip
"""By the name in ``preprocessor_config.json``."""
