"""Progress of one tuning, in a file of its checkpoint, from which an interrupted tuning resumes.

The file contains each tuned weight, ``weight.NAME``, the optimizer's ``mean.NAME`` and ``square.NAME``, and
``best.NAME`` once an epoch improved; metadata hold a :class:`Point`. Order and dropout depend on seed and updates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from ..bundle.progress_checkpoint import Checkpoint
from ..data.specs import decode
from ..errors import InputError
from .optimizer import tuned_parameters
from .settings import Epoch

MOMENTS = {"mean": "exp_avg", "square": "exp_avg_sq"}  # AdamW's names, in the file and in torch


@dataclass
class Point:
    """Progress of a tuning: ``loss`` sums this epoch's updates; ``best`` are the best epoch's weights, if any."""

    updates: int
    loss: float
    seconds: float
    history: list[Epoch]
    best: dict[str, Tensor] | None = None


@dataclass(frozen=True)
class State:
    """The file of one tuning in a checkpoint."""

    checkpoint: Checkpoint
    name: str

    def save(self, point: Point, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Write the state needed to resume from ``point``; does nothing if the checkpoint has no folder."""
        if self.checkpoint.folder is None:
            return
        tensors = {f"best.{name}": tensor for name, tensor in (point.best or {}).items()}
        for name, parameter in tuned_parameters(module):
            moments = optimizer.state.get(parameter, {})
            tensors[f"weight.{name}"] = parameter.detach().cpu()
            tensors |= {f"{short}.{name}": moments[key].cpu() for short, key in MOMENTS.items() if key in moments}
        facts = replace(point, best=None)
        with self.checkpoint.writing(self.name) as part:
            state = msgspec.json.format(msgspec.json.encode(facts), indent=2)
            save_file(tensors, part, metadata={"state": state.decode()})

    def restore(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> Point:
        """Load weights and optimizer state from the file; without one, return the start."""
        if not self.checkpoint.has(self.name):
            return Point(0, 0.0, 0.0, [])
        assert self.checkpoint.folder is not None
        path = self.checkpoint.folder / self.name
        try:
            with safe_open(path, "pt") as file:
                point = decode(file.metadata()["state"], Point, path, InputError)
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            _put(tensors, module, optimizer, point)
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, InputError) as error:
            raise InputError(f"{path} is not the state of a tuning ({error}); {self.checkpoint.remedy}") from error
        return point


@torch.no_grad()
def _put(tensors: Mapping[str, Tensor], module: nn.Module, optimizer: torch.optim.Optimizer, point: Point) -> None:
    def own(kind: str, name: str, like: Tensor) -> Tensor:
        tensor = tensors[f"{kind}.{name}"]
        if tensor.shape != like.shape or tensor.dtype != like.dtype or not bool(tensor.isfinite().all()):
            raise ValueError(f"{kind}.{name} is not a finite tensor of {like.dtype} {list(like.shape)}")
        return tensor

    named = tuned_parameters(module)
    for name, parameter in named:
        parameter.copy_(own("weight", name, parameter))
        if point.updates:
            moments: dict[str, Any] = {
                key: own(short, name, parameter).to(parameter.device) for short, key in MOMENTS.items()
            }
            step = torch.tensor(float(point.updates), device=parameter.device)
            optimizer.state[parameter] = {"step": step, **moments}
    if any(name.startswith("best.") for name in tensors):
        point.best = {name: own("best", name, parameter) for name, parameter in named}
