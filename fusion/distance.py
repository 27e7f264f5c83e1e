"""The distance of features from the training data, in PyTorch (``bundle.density`` has the formula)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..bundle.density import Density


class FeatureDistance(nn.Module):
    """The fitted distance of a bundle; its tensors are buffers that no ``state_dict`` holds."""

    def __init__(self, density: Density) -> None:
        super().__init__()
        self.density = density
        for name, array in density.arrays().items():
            self.register_buffer(name, torch.from_numpy(array.copy()), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """[K, B, d] → [B], or of tokens [K, B, T, d] → [B, T], in float32."""
        if features.ndim == 4:
            found: Tensor = self(features.flatten(1, 2))
            return found.unflatten(0, features.shape[1:3])
        rows = nn.functional.normalize(features.float(), dim=-1) - self.get_buffer("centre")[:, None]
        rows = rows @ self.get_buffer("whitening")  # [K, B, r]
        means = self.get_buffer("means")  # [K, R, r]
        closeness = rows @ means.transpose(1, 2) - means.square().sum(dim=-1)[:, None] / 2  # [K, B, R]
        nearest = closeness.argmax(dim=-1)  # [K, B]
        chosen = means.gather(1, nearest[..., None].expand(-1, -1, means.shape[-1]))
        squared = (rows - chosen).square().sum(dim=-1)  # of the difference, not a difference of squares: [K, B]
        location, scale = self.get_buffer("location")[:, None], self.get_buffer("scale")[:, None]
        return ((squared - location) / scale).mean(dim=0)
