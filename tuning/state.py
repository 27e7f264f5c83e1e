"""How far a tuning has come, in a file, so that an interrupted one goes on where it stopped.

One safetensors file, written whole after every epoch and every few minutes. Of each weight that is tuned it holds the
tensors ``weight.NAME``, the optimizer's ``mean.NAME`` and ``square.NAME`` once there was an update, and ``best.NAME``
once an epoch was better than none; what stays as it was the bundle has. Its metadata hold, as JSON::

    {"schema": 2, "digest": "…", "updates": 120, "loss": 41.5, "seconds": 63.2, "history": [{"epoch": 0, …}, …]}

The digest is of settings, data and bundle: a state never mixes with another tuning. Order and dropout follow from seed
and number of updates, so that no generator's state has to travel.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from ..bundle.owned import owned_folder, sweep
from ..errors import InputError, cut, is_whole
from .optimizer import tuned_parameters
from .report import Epoch

log = logging.getLogger(__name__)


SCHEMA = 2


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
        best: tuned weights of the best epoch on the CPU; ``None`` while none was better than before tuning.
    """

    updates: int = 0
    loss: float = 0.0
    seconds: float = 0.0
    history: list[Epoch] = field(default_factory=list)
    best: dict[str, Tensor] | None = None


class State:
    """The file of one tuning; nothing is kept where no path is given."""

    def __init__(self, path: Path | None, digest: str, others: Sequence[Path] = ()) -> None:
        self.path = None if path is None else Path(os.path.realpath(path))  # a link stays one
        self._digest, self._others = digest, others

    def save(self, point: Point, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Write all that is needed to go on from ``point``."""
        if self.path is None:
            return
        tensors = {}
        for name, parameter in tuned_parameters(module):
            tensors[f"weight.{name}"] = parameter.detach().cpu()
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
        """Bring weights and optimizer to where the file says; the beginning if there is none."""
        if self.path is None or not self.path.exists():
            return Point()
        facts, tensors = self._read(self.path)
        try:
            point = _point(facts)
            self._put(tensors, module, optimizer, point)
        except (KeyError, TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise self._damaged(self.path, error) from error
        log.warning("going on with the tuning in %s: %d updates are done", self.path, point.updates)
        return point

    def remove(self) -> None:
        """Delete the file, and what killed processes left of it: the tuning is complete."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # its folder cannot be read
                sweep(self.path.parent, self.path.name)

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Around the moment in which the bundle that was tuned gives way to the tuned one, to which no state fits.

        The file has a hidden name meanwhile: of a process that is killed then, no state stays that would be refused
        ever after. Where the block fails it has its own name again.
        """
        if self.path is None or not self.path.exists():
            yield
            return
        with owned_folder(self.path.parent, self.path.name) as stage:
            self.path.replace(stage / self.path.name)
            try:
                yield
            except BaseException:
                (stage / self.path.name).replace(self.path)
                raise

    def abandon(self) -> None:
        """Delete the file and those of the other members: with these settings there is nothing to go on to."""
        self.remove()
        for path in self._others:
            path.unlink(missing_ok=True)

    @staticmethod
    @torch.no_grad()
    def _put(tensors: dict[str, Tensor], module: nn.Module, optimizer: torch.optim.Optimizer, point: Point) -> None:
        for name, parameter in tuned_parameters(module):
            parameter.copy_(_fitting(tensors[f"weight.{name}"], parameter))
            if point.updates:
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
            point.best = {name: _fitting(best[name], own) for name, own in tuned_parameters(module)}

    def _read(self, path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
        try:
            with safe_open(path, "pt") as file:
                facts = json.loads(file.metadata()["state"])
                if facts["schema"] != SCHEMA:
                    raise InputError(
                        f"{path} holds a tuning of schema {cut(facts['schema'])}; expected {SCHEMA}, of this version, "
                        f"since dropout draws otherwise in others; {_remedy(path)}"
                    )
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


def _point(facts: dict[str, Any]) -> Point:
    """Where a state says that the tuning stands, but for its weights; ValueError where it cannot stand there."""
    if not is_whole(facts["updates"]):
        raise ValueError(f"updates = {cut(facts['updates'])}")
    numbers = {name: facts[name] for name in ("loss", "seconds")}
    history = [Epoch(**epoch) for epoch in facts["history"]]
    for place, epoch in enumerate(history):
        numbers |= {f"{name} of epoch {place}": value for name, value in vars(epoch).items() if value is not None}
        if epoch.epoch != place or epoch.nll is None:
            raise ValueError(f"history of epoch {cut(epoch.epoch)} in place {place}")
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{name} = {cut(value)}")
    return Point(int(facts["updates"]), float(facts["loss"]), float(facts["seconds"]), history)


def _fitting(tensor: Tensor, like: Tensor) -> Tensor:
    if tensor.shape != like.shape or tensor.dtype != like.dtype:
        raise ValueError(f"a tensor of {tensor.dtype} {list(tensor.shape)}; expected {like.dtype} {list(like.shape)}")
    if not bool(tensor.isfinite().all()):
        raise ValueError("a tensor with numbers that are not finite")
    return tensor
