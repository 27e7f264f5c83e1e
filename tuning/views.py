"""Fixed views of training inputs: images mirrored and shifted, texts with some tokens hidden."""

from __future__ import annotations

import numpy as np

from ..data.label_encoding import are_tags
from .tuning_data import Source

SHIFT = 8  # an image moves by up to one in this many of its rows and columns
HIDDEN_SHARE = 0.15  # tokens hidden from attention: token cutoff (Shen et al. 2020)
MASK, PIXELS = "attention_mask", "pixel_values"


class Views:
    """Views of a source's inputs; view 0 is unchanged, as is every view of token classification and sounds."""

    def __init__(self, source: Source, count: int) -> None:
        modality = source.architecture.modality
        masked = modality == "text" and MASK in source.architecture.input_names and not are_tags(source.labels)
        self.count = count if masked or modality == "image" else 1
        rng = np.random.default_rng(0)  # the same for every seed, so that teachers need not run again
        self._starts = np.concatenate([[0], np.cumsum(source.lengths if masked else np.ones(len(source), np.int64))])
        size = int(self._starts[-1])
        self._hidden = [rng.random(size) < HIDDEN_SHARE for _ in range(self.count)] if masked else None
        self._moves = None if masked else rng.integers(-SHIFT, SHIFT + 1, (self.count, size, 3))

    def of(self, tensors: dict[str, np.ndarray], view: int, indices: np.ndarray) -> dict[str, np.ndarray]:
        """Return a view of some inputs' tensors."""
        if view and self._moves is not None:
            return {**tensors, PIXELS: moved(tensors[PIXELS], self._moves[view, indices])}
        if view and self._hidden is not None:
            mask = tensors[MASK].copy()
            for row, index in zip(mask, indices, strict=True):
                inner = slice(self._starts[index] + 1, self._starts[index + 1] - 1)  # never the first or the last
                places = np.flatnonzero(row)[1:-1]
                row[places[self._hidden[view][inner][: len(places)]]] = 0  # prepared tensors may hide some already
            return {**tensors, MASK: mask}
        return tensors


def moved(pixels: np.ndarray, moves: np.ndarray) -> np.ndarray:
    """Mirror and shift images [B, C, H, W] by moves [B, 3], each -SHIFT to SHIFT; edges are reflected."""
    height, width = pixels.shape[2:]
    down, right = height // SHIFT, width // SHIFT
    padded = np.pad(pixels, ((0, 0), (0, 0), (down, down), (right, right)), mode="reflect")
    rows = np.arange(height) + down + np.rint(moves[:, [1]] * down / SHIFT).astype(int)  # [B, H]
    columns = np.arange(width) + right + np.rint(moves[:, [2]] * right / SHIFT).astype(int)  # [B, W]
    columns = np.where(moves[:, [0]] > 0, columns[:, ::-1], columns)
    images, channels = np.arange(len(pixels))[:, None, None, None], np.arange(pixels.shape[1])[:, None, None]
    return padded[images, channels, rows[:, None, :, None], columns[:, None, None, :]]
