"""MC dropout (Gal & Ghahramani 2016): passes of a single model with its dropout on; masks depend on seed and input."""

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

MAX_PASSES = 1000


@dataclass(frozen=True)
class DropoutSpec:
    """Parsed ``mc-dropout:PASSES:CHECKPOINT``."""

    passes: int
    checkpoint: str


def dropout_spec(source: str | Path, compare: Sequence[str | Path]) -> DropoutSpec | None:
    """Parse a competitor's name; ``None`` if it names a checkpoint, bundle or folder."""
    word, *rest = str(source).split(":", 2)
    if word != KIND or Path(source).exists():
        return None
    if not rest or not re.fullmatch(r"[0-9]{1,4}", rest[0]) or not 2 <= int(rest[0]) <= MAX_PASSES:
        expected = f"expected {KIND}:10:CHECKPOINT, with 2 to {MAX_PASSES} passes"
        raise InputError(f"competitor {cut(source)} has no valid number of passes; {expected}")
    if len(rest) == 2 and rest[1]:
        return DropoutSpec(int(rest[0]), rest[1])
    others = [str(other) for other in compare if str(other).partition(":")[0] != KIND]
    single = [other for other in others if not (Path(other) / MANIFEST).is_file()]
    if len(single) != 1:
        reason = f"several are compared ({listing(single, 3)})" if single else "no checkpoint is compared"
        raise InputError(f"competitor {cut(source)} names no checkpoint, and {reason}; expected {source}:CHECKPOINT")
    return DropoutSpec(int(rest[0]), single[0])


class DropoutPasses:
    """Checkpoint with active dropout, for ``runtime.backends.reference.TorchModule``."""

    distance = None

    def __init__(self, model: Any, name: str, architecture: Architecture, passes: int, seed: int) -> None:
        rates = (architecture.hidden_dropout, architecture.attention_dropout, architecture.classifier_dropout)
        if not any(rates):
            raise InputError(
                f"{name} has dropout rates of zero; use a checkpoint trained with dropout, or drop heads: "
                "hydrant plan --method dropout"
            )
        self._model, self._passes, self._seed = model.train(), passes, seed
        self.architecture = architecture
        self._lock = threading.Lock()  # masks come from the process-wide generator

    def __call__(self, **inputs: Any) -> Any:
        """Return all passes as members (``fusion.FusedOutput`` or its like), from tensors of a batch [B, …]."""
        import torch

        from ..fusion.output_heads import summarize_task

        logits = []
        with self._lock, torch.random.fork_rng(devices=[]):
            for row in range(len(next(iter(inputs.values())))):
                own = _alone({name: tensor[row] for name, tensor in inputs.items()})
                digest = hashlib.sha256(str(self._seed).encode())
                for name, tensor in sorted(own.items()):
                    digest.update(name.encode() + np.ascontiguousarray(tensor.numpy()).tobytes())
                torch.manual_seed(int.from_bytes(digest.digest()[:7], "big"))
                copies = {name: tensor.expand(self._passes, *tensor.shape) for name, tensor in own.items()}
                logits.append(self._model(**copies).logits)  # [passes, C], for tokens [passes, T, C]
        if self.architecture.every_token:
            tokens = inputs["input_ids"].shape[1]
            logits = [torch.nn.functional.pad(each, (0, 0, 0, tokens - each.shape[1])) for each in logits]
        return summarize_task(self.architecture, torch.stack(logits, dim=1))


def _alone(tensors: dict[str, Any]) -> dict[str, Any]:
    """Return one input's tensors without padding."""
    mask = tensors.get("attention_mask")
    if mask is None:
        return tensors
    length = max(1, int(mask.nonzero().max()) + 1) if bool(mask.any()) else len(mask)
    return {name: tensor[:length] for name, tensor in tensors.items()}
