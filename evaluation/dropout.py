"""MC dropout as a competitor: passes of a single model with its dropout on (Gal & Ghahramani 2016).

Every input runs alone, without padding, its passes as one batch, with masks that follow from the seed and its tensors.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..bundle.architecture import Architecture
from ..bundle.manifest import MANIFEST
from ..errors import InputError, cut, listing

KIND = "mc-dropout"

MOST = 1000


@dataclass(frozen=True)
class Asked:
    """``mc-dropout:PASSES:CHECKPOINT``."""

    passes: int
    checkpoint: str


def asked(source: str | Path, compare: Sequence[str | Path]) -> Asked | None:
    """MC dropout by a competitor's name; ``None`` for the name of a checkpoint, bundle or folder."""
    word, *rest = str(source).split(":", 2)
    if word != KIND or Path(source).exists():
        return None
    if not rest or not re.fullmatch(r"[0-9]{1,4}", rest[0]) or not 2 <= int(rest[0]) <= MOST:
        expected = f"from 2 to {MOST}; expected {KIND}:10:CHECKPOINT"
        raise InputError(f"competitor {cut(source)} names no number of passes {expected}")
    if len(rest) == 2 and rest[1]:
        return Asked(int(rest[0]), rest[1])
    others = [str(other) for other in compare if str(other).partition(":")[0] != KIND]
    single = [other for other in others if not (Path(other) / MANIFEST).is_file()]
    if len(single) != 1:
        found = f"several are compared ({listing(single, 3)})" if single else "no checkpoint is compared"
        raise InputError(f"competitor {cut(source)} names no checkpoint, and {found}; expected {source}:CHECKPOINT")
    return Asked(int(rest[0]), single[0])


class DropoutPasses:
    """A checkpoint with its dropout on, as ``runtime.backends.reference.TorchModule`` runs a fused module."""

    distance = None

    def __init__(self, model: Any, name: str, architecture: Architecture, passes: int, seed: int) -> None:
        rates = (architecture.hidden_dropout, architecture.attention_dropout, architecture.classifier_dropout)
        if not any(rates):
            raise InputError(
                f"{name} has dropout rates of zero; compare with a checkpoint trained with dropout, or drop heads: "
                "hydrant plan --method dropout"
            )
        self._model, self._passes, self._seed = model.train(), passes, seed
        self.architecture = architecture
        self._lock = threading.Lock()  # masks come from the one generator of this process

    def __call__(self, **inputs: Any) -> Any:
        """All passes as members (``fusion.FusedOutput``, or that of another task), from tensors of a batch [B, …]."""
        import torch

        from ..fusion.output_heads import summarize_task

        found = []
        with self._lock, torch.random.fork_rng(devices=[]):
            for row in range(len(next(iter(inputs.values())))):
                own = _alone({name: tensor[row] for name, tensor in inputs.items()})
                digest = hashlib.sha256(str(self._seed).encode())
                for name, tensor in sorted(own.items()):
                    digest.update(name.encode() + np.ascontiguousarray(tensor.numpy()).tobytes())
                torch.manual_seed(int.from_bytes(digest.digest()[:7], "big"))
                copies = {name: tensor.expand(self._passes, *tensor.shape) for name, tensor in own.items()}
                found.append(self._model(**copies).logits)  # [passes, C], of tokens [passes, T, C]
        if self.architecture.every_token:
            tokens = inputs["input_ids"].shape[1]
            found = [torch.nn.functional.pad(each, (0, 0, 0, tokens - each.shape[1])) for each in found]
        return summarize_task(self.architecture, torch.stack(found, dim=1))


def _alone(tensors: dict[str, Any]) -> dict[str, Any]:
    """One input's tensors without the padding behind it."""
    mask = tensors.get("attention_mask")
    if mask is None:
        return tensors
    length = max(1, int(mask.nonzero().max()) + 1) if bool(mask.any()) else len(mask)
    return {name: tensor[:length] for name, tensor in tensors.items()}
