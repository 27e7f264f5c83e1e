"""What a model reads, as far as raw inputs care."""

from __future__ import annotations

from typing import Literal, Protocol

Modality = Literal["text", "image", "audio"]


class InputSpec(Protocol):
    """Shapes and limits of a model's inputs; a bundle's architecture is one."""

    @property
    def modality(self) -> Modality:
        """What the model reads."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of its tensors, in order."""

    @property
    def every_token(self) -> bool:
        """Whether it answers for each token, so that texts are read word by word."""

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""

    @property
    def token_types(self) -> int:
        """Number of token types; 0 for a model without."""

    @property
    def padding_token(self) -> int:
        """Token id that fills short sequences."""

    @property
    def max_sequence(self) -> int:
        """Longest text, tokens."""

    @property
    def shortest(self) -> int:
        """Fewest samples of a sound; 0 for other models."""

    @property
    def spectrogram(self) -> tuple[int, ...]:
        """Shape of the spectrograms of a model that reads such sounds; empty for other models."""

    @property
    def channels(self) -> int:
        """Image channels."""

    @property
    def image_height(self) -> int:
        """Image height, pixels."""

    @property
    def image_width(self) -> int:
        """Image width, pixels."""
