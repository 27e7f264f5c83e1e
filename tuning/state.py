"""How far a tuning has come, in a file, so that an interrupted one goes on where it stopped.

One safetensors file, written whole after every epoch and every few minutes. Tensors ``weight.NAME``, the optimizer's
``mean.NAME`` and ``square.NAME`` once there was an update, and ``best.NAME`` once an epoch was better than none; its
metadata hold, as JSON::

    {"schema": 1, "digest": "…", "updates": 120, "loss": 41.5, "seconds": 63.2, "history": [{"epoch": 0, …}, …]}

The digest is of settings, data and bundle: a state never mixes with another tuning. Order and dropout follow from seed
and number of updates, so that no generator's state has to travel.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from ..bundle.owned import owned_folder, sweep
from ..errors import InputError
from .report import Epoch

log = logging.getLogger(__name__)


SCHEMA = 1


MOMENTS = {"mean": "exp_avg", "square": "exp_avg_sq"}
"""Names of AdamW's running means in the file and in torch."""


@dataclass
class Point:
    """Where a tuning stands.

    Attributes:
        updates: done so far.
        loss: sum of the losses of this epoch's updates.
        seconds: spent so far.
        history: what each epoch reached; entry 0 is before tuning.
        best: weights of the best epoch on the CPU; ``None`` while none was better than before tuning.
    """

    updates: int = 0
    loss: float = 0.0
    seconds: float = 0.0
    history: list[Epoch] = field(default_factory=list)
    best: dict[str, Tensor] | None = None


class State:
    """The file of one tuning; nothing is kept where no path is given.

    Args:
        path: the file, or ``None``.
        digest: of settings, data and bundle.
        others: files of the same tuning, of its other members.
    """

    def __init__(self, path: Path | None, digest: str, others: Sequence[Path] = ()) -> None:
        self.path = None if path is None else Path(os.path.realpath(path))  # a link stays one
        self._digest, self._others = digest, others

    def save(self, point: Point, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Write all that is needed to go on from ``point``.

        Raises:
            InputError: the file cannot be written.
        """
        if self.path is None:
            return
        tensors = {f"weight.{name}": tensor.detach().cpu() for name, tensor in module.named_parameters()}
        for name, parameter in module.named_parameters():
            moments = optimizer.state.get(parameter, {})
            tensors |= {f"{short}.{name}": moments[key].cpu() for short, key in MOMENTS.items() if key in moments}
        tensors |= {f"best.{name}": tensor for name, tensor in (point.best or {}).items()}
        facts = {key: value for key, value in vars(point).items() if key not in ("best", "history")}
        facts |= {"schema": SCHEMA, "digest": self._digest, "history": [asdict(epoch) for epoch in point.history]}
        try:
            sweep(self.path.parent, self.path.name)
            with owned_folder(self.path.parent, self.path.name) as stage:
                save_file(tensors, stage / self.path.name, metadata={"state": json.dumps(facts)})
                (stage / self.path.name).replace(self.path)
        except (OSError, SafetensorError) as error:
            raise InputError(f"cannot write {self.path}: {error}") from error

    def restore(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> Point:
        """Bring weights and optimizer to where the file says; the beginning if there is none.

        Raises:
            InputError: the file cannot be read, is damaged, or belongs to another tuning.
        """
        if self.path is None or not self.path.exists():
            return Point()
        facts, tensors = self._read(self.path)
        try:
            point = Point(int(facts["updates"]), float(facts["loss"]), float(facts["seconds"]))
            point.history = [Epoch(**epoch) for epoch in facts["history"]]
            self._put(tensors, module, optimizer, point)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise self._damaged(self.path, error) from error
        log.warning("going on with the tuning in %s: %d updates are done", self.path, point.updates)
        return point

    def remove(self) -> None:
        """Delete the file: the tuning is complete."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def abandon(self) -> None:
        """Delete the file and those of the other members: with these settings there is nothing to go on to."""
        self.remove()
        for path in self._others:
            path.unlink(missing_ok=True)

    @staticmethod
    @torch.no_grad()
    def _put(tensors: dict[str, Tensor], module: nn.Module, optimizer: torch.optim.Optimizer, point: Point) -> None:
        for name, parameter in module.named_parameters():
            parameter.copy_(_fitting(tensors[f"weight.{name}"], parameter))
            if point.updates and parameter.requires_grad:
                moments = {
                    key: _fitting(tensors[f"{short}.{name}"], parameter).to(parameter.device)
                    for short, key in MOMENTS.items()
                }
                optimizer.state[parameter] = {
                    "step": torch.tensor(float(point.updates), device=parameter.device),
                    **moments,
                }
        best = {name.removeprefix("best."): tensor for name, tensor in tensors.items() if name.startswith("best.")}
        if best:
            point.best = {name: _fitting(best[name], tensor) for name, tensor in module.named_parameters()}

    def _read(self, path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
        try:
            with safe_open(path, "pt") as file:
                facts = json.loads(file.metadata()["state"])
                if facts["schema"] != SCHEMA:
                    raise ValueError(f"schema {facts['schema']}")
                if facts["digest"] != self._digest:
                    raise InputError(
                        f"{path} holds an interrupted tuning with other settings, data or bundle; run the command "
                        f"that began it, or {_remedy(path)}"
                    )
                return facts, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        except OSError as error:
            raise InputError(f"cannot read {path}: {error.strerror or error}; {_remedy(path)}") from error
        except (SafetensorError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._damaged(path, error) from error

    @staticmethod
    def _damaged(path: Path, error: Exception) -> InputError:
        return InputError(f"{path} is not the state of a tuning ({error}); {_remedy(path)}")


def _remedy(path: Path) -> str:
    return f"delete {path} to start anew, or choose another output"


def _fitting(tensor: Tensor, like: Tensor) -> Tensor:
    if tensor.shape != like.shape:
        raise ValueError(f"a tensor of shape {list(tensor.shape)}; expected {list(like.shape)}")
    return tensor
