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

from ..calib.decisions.temperature import averaged_nll, best_temperature
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
from .optimizer import GRADIENT_NORM, make_optimizer, member_loss, rate_at, tuned_parameters
from .settings import BatchEnsemble, Epoch, Jointly, Settings, best_epoch
from .tuning_data import Given, Source, activations, epoch_batches, frozen, member_logits, on_device
from .tuning_state import Point, State

log = logging.getLogger(__name__)


SAVE_SECONDS = 120.0  # between writes of the state within an epoch


@dataclass(frozen=True)
class Trained:
    """A tuning that ended: weights of the best epoch on the CPU, where one was better than none, and all figures."""

    weights: dict[str, Tensor] | None
    history: tuple[Epoch, ...]
    seconds: float

    @property
    def best(self) -> Epoch:
        """Whose weights these are; the first for the weights as they were."""
        return self.history[best_epoch(self.history)]


def open_accelerator(how: Jointly) -> Any:
    """The handle of accelerate on the device of a tuning, in float32: each update sets bfloat16 itself."""
    accelerate = require("accelerate", "tune", "tune a bundle")
    try:
        accelerator = accelerate.Accelerator(cpu=how.device == "cpu", mixed_precision="no")
    except ValueError as error:
        raise InputError(f"cannot use device {how.device!r}: {error}; start a new process for it") from error
    if accelerator.num_processes > 1:
        raise InputError(
            f"tuning was launched in {accelerator.num_processes} processes; expected one: run `hydrant tune` itself"
        )
    if how.mixed_precision == "bf16":
        check_bfloat16(accelerator.device.type)
    return accelerator


def check_bfloat16(device: str) -> None:
    """Refuse a GPU that does not compute in bfloat16, and warn of a CPU that converts each product first."""
    if device == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise InputError(
            f"{torch.cuda.get_device_name()} lacks bfloat16; leave mixed_precision (--mixed-precision) out"
        )
    cpu = torch.cpu.get_capabilities()
    if device == "cpu" and cpu["architecture"] == "x86_64" and not (cpu["amx_bf16"] or cpu["avx512_bf16"]):
        log.warning("this CPU (%s) has neither AMX nor AVX512-BF16: bfloat16 will be slower than float32; leave "
                    "mixed_precision (--mixed-precision) out", cpu["cpu_name"])  # fmt: skip


def train(
    job: Given, module: FusedClassifier, state: State, title: str = "", begin: Callable[[], None] = lambda: None
) -> Trained:
    """Tune a module until its epochs are over or validation NLL no longer falls."""
    settings, accelerator, device = job.settings, job.accelerator, job.accelerator.device
    module = module.to(device)
    frozen(module, settings.trunk)
    module, prepared = accelerator.prepare(module, make_optimizer(module, settings, device))
    point = state.restore(module, prepared.optimizer)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), activations(job, module) as kept:
        run = _Run(kept, module, prepared, state, point, title, begin)
        while not run.over:  # the caller's random numbers stay as they were
            run.advance()
    module.cpu()
    accelerator.free_memory()  # it holds on to every module and optimizer that it prepared
    best = point.best
    weights = None if best is None else {name: best.get(name, own.detach()) for name, own in module.named_parameters()}
    return Trained(weights, tuple(point.history), point.seconds)


@dataclass
class _Run:
    """One tuning on its way."""

    job: Given
    module: FusedClassifier
    optimizer: Any
    state: State
    point: Point
    title: str
    begin: Callable[[], None]

    @property
    def steps(self) -> int:
        """Updates of an epoch."""
        return math.ceil(len(self.job.known) / self.job.settings.batch_size)

    @property
    def over(self) -> bool:
        """Whether all epochs ran, or the last ones brought nothing."""
        epochs, how = len(self.point.history) - 1, self.job.settings.how
        return epochs >= how.epochs or (epochs > 0 and epochs - best_epoch(self.point.history) >= how.patience)

    def advance(self) -> None:
        """Finish the epoch that was begun, or judge the weights before the first one."""
        begun = time.monotonic()
        spent = self.point.seconds
        epoch = len(self.point.history)  # the one whose entry is made now
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
        """The updates of an epoch that are not done yet."""
        batches = epoch_batches(self.job.known.lengths, self.job.settings.batch_size, self.job.settings.seed, epoch)
        rest = batches[self.point.updates - (epoch - 1) * self.steps :]
        self.module.train()
        saved = time.monotonic()
        for indices in self.job.progress(rest, len(rest), self._words(epoch)):
            self._update(indices)
            if time.monotonic() - saved >= SAVE_SECONDS:
                self.point.seconds = spent + time.monotonic() - begun
                self.state.save(self.point, self.module, self.optimizer.optimizer)
                saved = time.monotonic()
        self.module.eval()

    def _update(self, indices: np.ndarray) -> None:
        """One step of the optimizer."""
        point, settings = self.point, self.job.settings
        factor = rate_at(point.updates, self.steps * settings.how.epochs, settings.how.warmup)
        for group in self.optimizer.param_groups:
            group["lr"] = settings.how.learning_rate * factor
        torch.manual_seed(_dropout_seed(settings.seed, point.updates))
        tensors, labels = self.job.known.batch(indices)
        device = self.job.accelerator.device
        with torch.autocast(device.type, torch.bfloat16, enabled=settings.how.mixed_precision == "bf16"):
            logits = member_logits(self.module, on_device(tensors, device), settings.trunk).float()  # [M, B, C]
        activation = self.module.architecture.score_activation
        loss = member_loss(logits, torch.from_numpy(labels).to(device), activation)
        found = float(loss.detach())
        if not math.isfinite(found):
            raise self._diverged("loss", found)
        self.optimizer.zero_grad()
        self.job.accelerator.backward(loss)
        self.job.accelerator.clip_grad_norm_(self.module.parameters(), GRADIENT_NORM)
        self.optimizer.step()
        point.updates += 1
        point.loss += found

    def _diverged(self, what: str, found: float) -> InputError:
        self.state.checkpoint.remove()  # going on from there would end here again
        remedy = _remedy(self.job.settings.how, self.point.updates, judged=bool(self.point.history))
        return InputError(
            f"the {what} became {found} after {self.point.updates} updates; expected a finite number: {remedy}; "
            "nothing was written"
        )

    def _words(self, epoch: int) -> str:
        """Title of an epoch's display: what the last one reached, and how long the others will take at most."""
        last = self.point.history[-1]
        words = [f"{self.title}epoch {epoch} of {self.job.settings.how.epochs}", f"NLL {last.nll:.4f}"]
        if last.loss is not None:
            left = self.point.seconds / (epoch - 1) * (self.job.settings.how.epochs - epoch + 1)
            words += [f"loss {last.loss:.3f}", f"at most {left:.0f} s left"]
        return ", ".join(words)


def _remedy(how: Jointly, updates: int, judged: bool) -> str:
    """What to do about numbers that are not finite after some updates."""
    if not judged:
        return "the weights give none before any update; fuse a checkpoint that predicts on these data"
    if not updates and isinstance(how, BatchEnsemble):
        return f"tune with a smaller deviation than {how.deviation:g}, such as {how.deviation / 10:g}"
    if how.learning_rate * how.weight_decay > 1 > how.learning_rate:  # each update turns the weights' signs
        return f"tune with a lower weight decay than {how.weight_decay:g}, such as 0.01"
    return f"tune with a lower learning rate than {how.learning_rate:g}, such as {how.learning_rate / 10:g}"


def measure(module: FusedClassifier, source: Source, settings: Settings) -> dict[str, Any]:
    """NLL, accuracy and ECE at the best temperature, since tuning sharpens a model; NLL and RMSE of a regression.

    Tags count by words, relevance as two classes, multi-label answers as a whole. Leaves ``module`` evaluating.
    """
    found = np.empty((len(source), module.members, module.architecture.classes), np.float32)
    labels = source.labels
    words: list[tuple[np.ndarray, np.ndarray]] = []  # logits and labels of tagged words, batch by batch
    module.eval()
    device = next(module.parameters()).device
    with torch.inference_mode():
        for indices in by_length(source.lengths, settings.batch_size):
            tensors, known = source.batch(indices)
            logits = member_logits(module, on_device(tensors, device), settings.trunk).float()  # [M, B, C]
            if are_tags(known):
                words.append(labelled(logits.cpu().numpy(), known))
                continue
            found[indices] = logits.transpose(0, 1).cpu().numpy()
    if words:
        found = np.concatenate([each for each, _ in words], axis=1).swapaxes(0, 1)  # [N, M, C]
        labels = np.concatenate([known for _, known in words])
    if not np.isfinite(found).all():
        return dict.fromkeys(("nll", "accuracy", "ece", "temperature"), math.nan)
    if labels.ndim == 2:
        return _labelled(found, labels)
    if labels.dtype != np.int64:
        return _regression(found, labels, module.architecture.score_activation)
    if found.shape[-1] == 1:
        found = np.concatenate([np.zeros_like(found), found], axis=-1)  # not relevant, relevant
    temperature = best_temperature(found, labels)
    probabilities = summarise(found, temperature)["probabilities"]
    return {
        "nll": averaged_nll(found, labels, temperature),
        "accuracy": accuracy(probabilities, labels),
        "ece": expected_calibration_error(probabilities, labels),
        "temperature": temperature,
    }


def _labelled(logits: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """NLL of an example's labels [N, C], share of examples all of whose are right, and ECE, from logits [N, M, C]."""
    pairs = label_pairs(logits).transpose(0, 2, 1, 3).reshape(-1, logits.shape[1], 2)  # [N·C, M, 2]
    temperature = best_temperature(pairs, labels.reshape(-1).astype(np.int64))
    probabilities = summarise_labels(logits, np.array([temperature]))["probabilities"]
    return {
        "nll": float(joint_losses(probabilities, labels).mean()),
        "accuracy": float(((probabilities > 0.5) == labels).all(axis=1).mean()),
        "ece": float(label_errors(probabilities, labels).mean()),
        "temperature": temperature,
    }


def _regression(logits: np.ndarray, labels: np.ndarray, activation: ScoreActivation) -> dict[str, Any]:
    """NLL and RMSE of members' scores, from logits [N, M, 1]."""
    scores = activated(torch.from_numpy(logits), activation).double().numpy()  # [N, M]
    errors, variance = labels - scores.mean(axis=1), scores.var(axis=1)
    nll = float(gaussian_nll(errors, variance, fit_scale(errors, variance)).mean())
    return {"nll": nll, "accuracy": None, "ece": None, "temperature": 1.0, "rmse": rmse(errors)}


def _dropout_seed(seed: int, updates: int) -> int:
    """Seed of the dropout of one update: it depends on nothing that happened before."""
    return int(np.random.SeedSequence([seed, updates]).generate_state(1, np.uint64)[0] >> 1)
