"""Samples → the logarithm of their energy in mel bands, frame by frame, as the models of transformers were trained on.

Two kinds are in use: Kaldi's, which AST reads, and Whisper's. Numbers are those of ``transformers.audio_utils``.
"""

from __future__ import annotations

import numpy as np

WIDTH, HOP = 400, 160
"""Samples of a frame and between the starts of two, of either kind: 25 and 10 ms at 16,000 samples a second."""

LEAST = 1.192092955078125e-07
"""Energy of silence in Kaldi's bands: the difference between 1 and the next float32."""


def kaldi_bands(samples: np.ndarray, rate: int, bands: int) -> np.ndarray:
    """Natural logarithms of the energies in Kaldi's mel bands: [samples] → [frames, bands] float32.

    Frames lie within the samples; each loses its mean, is pre-emphasised (0.97) and put under a Hann window.

    Args:
        samples: [samples], at least :data:`WIDTH`.
    """
    frames = np.lib.stride_tricks.sliding_window_view(samples.astype(np.float64), WIDTH)[::HOP]
    frames = frames - frames.mean(axis=1, keepdims=True)
    before = np.concatenate([frames[:, :1], frames[:, :-1]], axis=1)
    energies = _energies((frames - 0.97 * before) * np.hanning(WIDTH), 512)
    edges = np.linspace(_kaldi_mel(20.0), _kaldi_mel(rate // 2), bands + 2)
    triangles = _triangles(_kaldi_mel(np.arange(257) * rate / 512), edges)
    found: np.ndarray = np.log(np.maximum(energies @ triangles, LEAST)).astype(np.float32)
    return found


def whisper_bands(samples: np.ndarray, rate: int, bands: int) -> np.ndarray:
    """What Whisper reads: [samples] → [bands, frames] float32, a frame for every :data:`HOP` samples.

    Decimal logarithms of the energies in Slaney's mel bands from 0 to 8000 Hz, of at most 8 below the largest, shifted
    and scaled. Frames are centred; what lies outside of the samples is their mirror image.

    Args:
        samples: [samples], more than :data:`WIDTH` / 2.
    """
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


_STEPS = 27 / np.log(6.4)
"""Of Slaney's scale above 1000 Hz, for each factor e."""


def _slaney_hertz(mel: np.ndarray) -> np.ndarray:
    """Slaney's scale: 15 mel at 1000 Hz, linear below and logarithmic above."""
    return np.where(mel < 15, 200 * mel / 3, 1000 * np.exp((mel - 15) / _STEPS))
