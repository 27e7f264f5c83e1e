"""The training loop: updates through accelerate, an evaluation after each epoch, the best weights kept."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..calib.decisions.temperature import averaged_nll, likeliest_temperature
from ..calib.losses import activated
from ..data.batching import by_length
from ..data.label_encoding import are_tags, labelled
from ..errors import InputError, require
from ..fusion import FusedClassifier
from ..metrics.class_metrics import accuracy, expected_calibration_error
from ..metrics.labels import joint_losses, label_errors, label_pairs, summarise_labels
from ..metrics.scores import fit_scale, gaussian_nll, rmse
from ..metrics.uncertainty import summarise
from ..tasks import ScoreActivation
from .optimizer import GRADIENT_NORM, make_optimizer, rate_at, tuned_parameters
from .settings import BatchEnsemble, Epoch, Jointly, Settings, best_epoch, derived_seed
from .tuning_data import Source, TuningData, activations, epoch_batches, frozen, member_logits, on_device
from .tuning_state import Point, State

log = logging.getLogger(__name__)
SAVE_SECONDS = 120.0  # between writes of the state within an epoch


@dataclass(frozen=True)
class Trained:
    """A finished tuning: weights of the best epoch on the CPU, if one improved on the start, and all metrics."""

    weights: dict[str, Tensor] | None
    history: tuple[Epoch, ...]

    @property
    def best(self) -> Epoch:
        """The epoch of these weights; epoch 0 for unchanged weights."""
        return self.history[best_epoch(self.history)]


def open_accelerator(how: Jointly) -> Any:
    """Return the accelerator of a tuning's device, in float32: each update enables bfloat16 itself."""
    accelerate = require("accelerate", "tune", "tune a bundle")
    try:
        accelerator = accelerate.Accelerator(cpu=how.device == "cpu", mixed_precision="no")
    except ValueError as error:
        raise InputError(f"cannot use device {how.device!r}: {error}; start a new process for it") from error
    if how.device == "gpu" and accelerator.device.type == "cpu":
        raise InputError("device is 'gpu', but PyTorch finds none here; use a CUDA build of PyTorch, or device cpu")
    if accelerator.num_processes > 1:
        raise InputError(f"tuning was launched in {accelerator.num_processes} processes; expected one: use no launcher")
    if how.mixed_precision == "bf16":
        check_bfloat16(accelerator.device.type)
    return accelerator


def check_bfloat16(device: str) -> None:
    """Raise if a GPU does not compute in bfloat16; warn if a CPU converts each product first."""
    if device == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise InputError(f"{torch.cuda.get_device_name()} lacks bfloat16; omit mixed_precision (--mixed-precision)")
    cpu = torch.cpu.get_capabilities()
    if device == "cpu" and cpu["architecture"] == "x86_64" and not (cpu["amx_bf16"] or cpu["avx512_bf16"]):
        log.warning("this CPU (%s) has neither AMX nor AVX512-BF16: bfloat16 will be slower than float32; omit "
                    "mixed_precision (--mixed-precision)", cpu["cpu_name"])  # fmt: skip


def train(
    job: TuningData, module: FusedClassifier, state: State, title: str = "", begin: Callable[[], None] = lambda: None
) -> Trained:
    """Tune a module until its epochs end or validation NLL no longer falls."""
    settings, accelerator, device = job.settings, job.accelerator, job.accelerator.device
    module = module.to(device)
    frozen(module, settings.trunk)
    module, prepared = accelerator.prepare(module, make_optimizer(module, settings, device))
    point = state.restore(module, prepared.optimizer)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), activations(job, module) as prepared_job:
        run = _Run(prepared_job, module, prepared, state, point, title, begin)
        while not run.over:  # fork_rng keeps the caller's random numbers unchanged
            run.advance()
    module.cpu()
    accelerator.free_memory()  # it keeps references to every prepared module and optimizer
    best = point.best
    weights = None if best is None else {name: best.get(name, own.detach()) for name, own in module.named_parameters()}
    return Trained(weights, tuple(point.history))


@dataclass
class _Run:
    """One tuning in progress."""

    job: TuningData
    module: FusedClassifier
    optimizer: Any
    state: State
    point: Point
    title: str
    begin: Callable[[], None]

    @property
    def steps(self) -> int:
        """Number of updates of an epoch."""
        return math.ceil(len(self.job.training) / self.job.settings.batch_size)

    @property
    def over(self) -> bool:
        """True if all epochs ran, or the last ones brought no improvement."""
        epochs, how = len(self.point.history) - 1, self.job.settings.how
        return epochs >= how.epochs or (epochs > 0 and epochs - best_epoch(self.point.history) >= how.patience)

    def advance(self) -> None:
        """Finish the current epoch and evaluate it; at first only evaluate the untuned weights."""
        begun = time.monotonic()
        spent = self.point.seconds
        epoch = len(self.point.history)  # the epoch that this call records
        if self.point.updates < epoch * self.steps:
            self._epoch(epoch, begun, spent)
        loss = self.point.loss / self.steps if epoch else None
        entry = Epoch(epoch, loss, **measure(self.module, self.job.held_out, self.job.settings))
        if not math.isfinite(entry.nll):
            raise self._diverged("validation NLL", entry.nll)
        quality = ("RMSE", entry.rmse) if entry.accuracy is None else ("accuracy", entry.accuracy)
        log.info("%sepoch %d: validation NLL %.4f, %s %.4f", self.title, epoch, entry.nll, *quality)
        self.point.history.append(entry)
        self.point.loss = 0.0
        if not epoch:
            self.begin()
        elif best_epoch(self.point.history) == epoch:
            self.point.best = {name: own.detach().cpu().clone() for name, own in tuned_parameters(self.module)}
        self.point.seconds = spent + time.monotonic() - begun
        if epoch:
            self.state.save(self.point, self.module, self.optimizer.optimizer)

    def _epoch(self, epoch: int, begun: float, spent: float) -> None:
        """Run the remaining updates of an epoch."""
        batches = epoch_batches(self.job.training.lengths, self.job.settings.batch_size, self.job.settings.seed, epoch)
        rest = batches[self.point.updates - (epoch - 1) * self.steps :]
        training = self.job.training.at_epoch(epoch)
        self.module.train()
        saved = time.monotonic()
        for indices in self.job.progress(rest, len(rest), self._words(epoch)):
            self._update(training, indices)
            if time.monotonic() - saved >= SAVE_SECONDS:
                self.point.seconds = spent + time.monotonic() - begun
                self.state.save(self.point, self.module, self.optimizer.optimizer)
                saved = time.monotonic()
        self.module.eval()

    def _update(self, training: Source, indices: np.ndarray) -> None:
        """Make one optimizer step."""
        point, settings = self.point, self.job.settings
        factor = rate_at(point.updates, self.steps * settings.how.epochs, settings.how.warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = settings.how.learning_rate * factor
        torch.manual_seed(derived_seed(settings.seed, point.updates))  # independent of earlier draws
        tensors, labels = training.batch(indices)
        device = self.job.accelerator.device
        with torch.autocast(device.type, torch.bfloat16, enabled=settings.how.mixed_precision == "bf16"):
            logits = member_logits(self.module, on_device(tensors, device), settings.trunk).float()  # [M, B, C]
        loss = self.job.loss(logits, torch.from_numpy(labels).to(device), self.module.architecture.score_activation)
        step_loss = float(loss.detach())
        if not math.isfinite(step_loss):
            raise self._diverged("loss", step_loss)
        self.optimizer.zero_grad()
        self.job.accelerator.backward(loss)
        self.job.accelerator.clip_grad_norm_(self.module.parameters(), GRADIENT_NORM)
        self.optimizer.step()
        point.updates += 1
        point.loss += step_loss

    def _diverged(self, name: str, value: float) -> InputError:
        self.state.checkpoint.remove()  # resuming there would fail again
        remedy = _remedy(self.job.settings.how, self.point.updates, judged=bool(self.point.history))
        wrong = f"the {name} became {value} after {self.point.updates} updates"
        return InputError(f"{wrong}; expected a finite number: {remedy}; nothing was written")

    def _words(self, epoch: int) -> str:
        """Return a progress title: the last epoch's metrics, and the remaining time at most."""
        last = self.point.history[-1]
        words = [f"{self.title}epoch {epoch} of {self.job.settings.how.epochs}", f"NLL {last.nll:.4f}"]
        if last.loss is not None:
            left = self.point.seconds / (epoch - 1) * (self.job.settings.how.epochs - epoch + 1)
            words += [f"loss {last.loss:.3f}", f"at most {left:.0f} s left"]
        return ", ".join(words)


def _remedy(how: Jointly, updates: int, judged: bool) -> str:
    """Return the fix for non-finite numbers after some updates."""
    if not judged:
        return "the untuned weights give none; fuse a checkpoint that predicts on these data"
    if not updates and isinstance(how, BatchEnsemble):
        return f"tune with a smaller deviation than {how.deviation:g}, such as {how.deviation / 10:g}"
    if how.learning_rate * how.weight_decay > 1 > how.learning_rate:  # each update flips the weights' signs
        return f"tune with a lower weight decay than {how.weight_decay:g}, such as 0.01"
    return f"tune with a lower learning rate than {how.learning_rate:g}, such as {how.learning_rate / 10:g}"


def measure(module: Any, source: Source, settings: Settings) -> dict[str, Any]:
    """NLL, accuracy and ECE at the best temperature, for regression NLL and RMSE; leaves the evaluation mode on."""
    outputs = np.empty((len(source), module.members, module.architecture.classes), np.float32)
    labels = source.labels
    words: list[tuple[np.ndarray, np.ndarray]] = []  # logits and labels of tagged words, batch by batch
    module.eval()
    device = next(module.parameters()).device
    with torch.inference_mode():
        for indices in by_length(source.lengths, settings.batch_size):
            tensors, targets = source.batch(indices)
            logits = member_logits(module, on_device(tensors, device), settings.trunk).float()  # [M, B, C]
            if are_tags(targets):
                words.append(labelled(logits.cpu().numpy(), targets))
                continue
            outputs[indices] = logits.transpose(0, 1).cpu().numpy()
    if words:
        outputs = np.concatenate([each for each, _ in words], axis=1).swapaxes(0, 1)  # [N, M, C]
        labels = np.concatenate([tags for _, tags in words])
    if not np.isfinite(outputs).all():
        return dict.fromkeys(("nll", "accuracy", "ece", "temperature"), math.nan)
    if labels.ndim == 2:
        return _labelled(outputs, labels)
    if labels.dtype != np.int64:
        return _regression(outputs, labels, module.architecture.score_activation)
    if outputs.shape[-1] == 1:
        outputs = np.concatenate([np.zeros_like(outputs), outputs], axis=-1)  # not relevant, relevant
    temperature = likeliest_temperature(outputs, labels)
    probabilities = summarise(outputs, temperature)["probabilities"]
    nll, ece = averaged_nll(outputs, labels, temperature), expected_calibration_error(probabilities, labels)
    return {"nll": nll, "accuracy": accuracy(probabilities, labels), "ece": ece, "temperature": temperature}


def _labelled(logits: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Return the NLL of an example's labels [N, C], the share without an error, and ECE, from logits [N, M, C]."""
    pairs = label_pairs(logits).transpose(0, 2, 1, 3).reshape(-1, logits.shape[1], 2)  # [N·C, M, 2]
    temperature = likeliest_temperature(pairs, labels.reshape(-1).astype(np.int64))
    probabilities = summarise_labels(logits, np.array([temperature]))["probabilities"]
    nll, ece = (float(of(probabilities, labels).mean()) for of in (joint_losses, label_errors))
    right = ((probabilities > 0.5) == labels).all(axis=1)
    return {"nll": nll, "accuracy": float(right.mean()), "ece": ece, "temperature": temperature}


def _regression(logits: np.ndarray, labels: np.ndarray, activation: ScoreActivation) -> dict[str, Any]:
    """Return NLL and RMSE of members' scores, from logits [N, M, 1]."""
    scores = activated(torch.from_numpy(logits), activation).double().numpy()  # [N, M]
    errors, variance = labels - scores.mean(axis=1), scores.var(axis=1)
    nll = float(gaussian_nll(errors, variance, fit_scale(errors, variance)).mean())
    return {"nll": nll, "accuracy": None, "ece": None, "temperature": 1.0, "rmse": rmse(errors)}
