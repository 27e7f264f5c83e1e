"""Sound → waveform tensor, as ``Wav2Vec2FeatureExtractor`` of transformers, without torch and without resampling."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from ..errors import InputError, cut, require
from .images import has_image_name
from .raw_inputs import Sound, Unusable, as_array
from .specs import InputSpec, processor_settings
from .tensors import EncodedTensors

Count = Annotated[int, msgspec.Meta(ge=1, le=10**6)]
Zero = Annotated[float, msgspec.Meta(ge=0, le=0)]
ENDINGS = (".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".au")
MOST_SECONDS = 600  # of one sound: attention looks at every pair of its moments, and would fill the memory
BLOCK = 2**16  # moments that are decoded at a time: a file of few bytes may have many channels of silence
EXPECTED = "a path, the bytes of a sound file, or an array of floats [samples]"


class SoundSettings(msgspec.Struct, frozen=True):
    """What is read of a configuration; other feature extractors prepare other tensors."""

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
        """What another runtime needs to know to prepare the same tensors."""
        return {"modality": "audio", "sampling_rate": self.rate, "normalise": self._normalise}

    def _prepared(self, index: int, sound: Any) -> np.ndarray:
        """[samples] float32, normalised."""
        samples, name = opened(sound, index, self.rate)
        check_samples(samples, self._shortest, name)
        if len(samples) > MOST_SECONDS * self.rate:
            raise InputError(f"{name} has {len(samples)} samples, over {MOST_SECONDS} seconds; cut it first")
        if self._normalise:
            wide = samples.astype(np.float64)  # squares of loud samples are beyond float32
            samples = (wide - wide.mean()) / np.sqrt(wide.var() + 1e-7)  # as in transformers
        return np.ascontiguousarray(samples, np.float32)


def check_samples(samples: np.ndarray, shortest: int, name: str) -> None:
    """Refuse samples [samples] that are too few, or not finite."""
    if len(samples) < shortest:
        raise InputError(f"{name} has {len(samples)} samples; expected at least {shortest}")
    if not np.isfinite(samples).all():
        raise InputError(f"{name} holds NaN or infinity; expected finite samples")


def _check_rate(found: int, expected: int, name: str) -> None:
    if found != expected:
        rates = f"{name} has {found} samples a second, and this model reads {expected}"
        raise InputError(f"{rates}; resample it first (ffmpeg -i IN -ar {expected} OUT.wav)")


def opened(sound: Any, index: int, expected: int, most: int | None = None) -> tuple[np.ndarray, str]:
    """Samples [samples] float32 at the expected rate, and what messages call them."""
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
    """The samples of a file or its bytes, the mean of its channels; nothing is decoded of one at another rate."""
    soundfile = require("soundfile", "audio", "read sound files")
    given = isinstance(sound, bytes | bytearray)
    called = name if given else f"sound {sound}"
    try:
        if not given and not Path(sound).is_file():
            raise InputError(f"{called} is no file; expected {EXPECTED}")
        with soundfile.SoundFile(io.BytesIO(sound) if given else str(sound)) as file:
            _check_rate(int(file.samplerate), expected, called)
            if most is None and file.frames > MOST_SECONDS * file.samplerate:
                raise InputError(f"{called} is longer than {MOST_SECONDS} seconds; cut it first")
            means, left = [np.zeros(0, np.float32)], sys.maxsize if most is None else most
            while len(block := file.read(min(BLOCK, left), dtype="float32", always_2d=True)):  # [frames, channels]
                means.append(block.mean(axis=1, dtype=np.float64).astype(np.float32))
                left -= len(block)
    except InputError:
        raise
    except Exception as error:  # libsndfile's errors, and what Path makes of a text that is no path
        raise InputError(f"cannot read {called}: {cut(error, 100)}; expected a whole sound file") from error
    return np.concatenate(means), called


def has_sound_name(path: str | Path) -> bool:
    """Whether a file is a sound by its name."""
    return Path(path).suffix.lower() in ENDINGS


def has_media_name(path: str | Path) -> bool:
    """Whether a file is an image or a sound by its name."""
    return has_sound_name(path) or has_image_name(path)
