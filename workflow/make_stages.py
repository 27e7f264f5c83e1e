"""Stages of ``make``: plan, fuse, tune, export, calibrate, compare, verify and evaluate, each with a record."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..bundle.head_plan import HeadPlan
from ..bundle.store import Bundle
from ..calib.heads.selection import accuracy_kept, error_kept
from ..data.data_options import DataOptions
from ..errors import noted
from ..models.plan_cost import cost_of
from ..progress import Progress
from .data_splits import Parts
from .make_inputs import MakeInputs
from .recipe import MEMBERS
from .stage_summaries import (
    behind_line,
    calibrated_line,
    control_line,
    evaluated_line,
    fused_line,
    planned_line,
    teachers_line,
    tuned_line,
    verified_line,
)
from .time_estimate import estimated_seconds, in_words
from .workspace import Workspace

if TYPE_CHECKING:
    from ..tuning import Jointly

log = logging.getLogger(__name__)

Say = Callable[[str], None]

MARGIN = 0.5
"""Percentage points of accuracy that tuned members with few heads may lose to the single model."""

ERROR_MARGIN = 1.0
"""Per cent by which a regression's RMSE may exceed the single model's."""

FIRST, SECOND = "first tuning", "second plan"
"""Stages of the tuning: the planned members, and a second plan if these fail."""

SWAPPED = (
    "the model fits the validation data clearly better than the training data: was it trained on them, or are --data "
    "and --validation swapped? Thresholds and metrics need unseen data"
)

CONTROLS, CONTROL = "control", ("control-above-fork", "control-whole")
"""Folder of the tuned single models in a workspace, and their names."""

TAUGHT_BY_MEAN = "taught-by-mean"
"""Control of members that learn from teachers each: one model that learns the teachers' mean."""


class Stages:
    """Stages of one call, in a workspace."""

    def __init__(self, call: MakeInputs, space: Workspace, name: str, say: Say, progress: Progress) -> None:
        self.model, self.recipe, self.teachers, self.reading = call.model, call.recipe, call.teachers, call.reading
        self.architecture, self.task = call.architecture, call.task
        self.space, self.say = space, say
        self.bundle = space.folder / "tuned" / name  # under its final name
        self.how: dict[str, Any] = {"seed": call.seed, "progress": progress}
        self.all = DataOptions(batch_size=call.reading.batch_size, examples=0)
        self.records: dict[str, Any] = {}

    def run(self, parts: Parts, html: Path | None) -> dict[str, Any]:
        """Run every unfinished stage in order; return all records."""
        from ..calib.decisions.calibrate_bundle import calibrate
        from ..evaluation.evaluator import evaluate
        from ..evaluation.verifier import verify
        from ..export import export_onnx

        bundle, every = self.bundle, {"reading": self.all, **self.how}
        self._members(parts)
        exported = "{graph}, checked".format_map
        self._stage("export", exported, lambda: {"graph": export_onnx(bundle, progress=self.how["progress"]).name})
        targets = {name: getattr(self.recipe, name) for name in ("abstain", "flags", "distance_form")}
        calibrating = {"fit": parts.training, "ood": parts.unknown_fitting, **targets, **every}
        self._stage("calibrate", calibrated_line, lambda: calibrate(bundle, parts.fitting, **calibrating).to_json())
        competitors = self._competitors(parts, calibrating)
        self._stage("verify", verified_line, lambda: verify(bundle, data=parts.reporting, **self.how).to_json())
        if html is not None and not (html.is_file() and self.space.recorded("evaluate").get("html") == str(html)):
            self.space.forget("evaluate")  # it also writes the page
        measured = parts.reporting, parts.unknown_reporting
        self._stage(
            "evaluate", evaluated_line,
            lambda: evaluate(bundle, *measured, compare=competitors, html=html, **every).to_json(),
        )  # fmt: skip
        return self.records

    def _stage(
        self, name: str, line: Callable[[dict[str, Any]], str], work: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """Run a stage unless it is recorded, report its line, and return its record."""
        self.records[name] = self.space.stage(name, work)
        self.say(f"{name:<10}{self.space.summary(name, line)}")
        return self.records[name]

    def _members(self, parts: Parts) -> None:
        """Plan and fuse the members and tune them; the single model is tuned only from teachers."""
        space, whole, plan = self.space, self.recipe.single, self.space.folder / "plan.json"
        untuned = space.folder / "untuned"
        if not whole:
            self._stage("plan", planned_line, lambda: self._plan(plan, parts, to_tune=True))
        if not space.recorded("fuse"):
            seconds = estimated_seconds(self.seconds, parts, self.recipe, len(self.teachers))
            self.say(f"time      {in_words(seconds)} for the rest at the present load")
        tuned = bool(self.teachers) or not whole
        fused = untuned if tuned else self.bundle
        self._stage("fuse", fused_line, lambda: self._fuse(self._whole() if whole else HeadPlan.load(plan), fused))
        if not tuned:
            return
        space.stage(FIRST, lambda: self._first(untuned, self.bundle, parts))
        if not whole and space.summary(FIRST, behind_line):
            space.stage(SECOND, lambda: self._second(space.folder, parts))
        self._tidy(space, self._stage("tune", tuned_line, lambda: self._tune(space, self.bundle, parts)))

    def _competitors(self, parts: Parts, calibrating: dict[str, Any]) -> list[Any]:
        """Calibrate the single model, controls and teachers on the same data; return what to compare with."""
        from ..evaluation.deep_ensemble import DeepEnsemble

        if not self.recipe.single or self.teachers:
            self._stage("single", calibrated_line, lambda: self._rival(self.space, self.bundle, parts, calibrating))
        settings = self._control_settings(parts)
        controls = {self.space.folder / CONTROLS / name: how for name, how in settings.items()}
        if controls:
            self._stage("control", control_line, lambda: self._controls(controls, parts, calibrating))
        if not self.teachers:
            return [self.model, *controls]
        fitted = self._stage("teachers", teachers_line, lambda: self._measured_teachers(parts))
        return [self.model, *controls, DeepEnsemble(tuple(self.teachers), fitted["temperature"], "teachers")]

    def _plan(self, file: Path, parts: Parts, *, to_tune: bool) -> dict[str, Any]:
        from ..calib.heads.methods import Budget
        from ..calib.heads.planning import plan_heads

        method = self.recipe.methods(parts.unknown_fitting, self.task, self._state(file))
        keep = Budget(self.recipe.limit(self.architecture), to_tune)
        reading = DataOptions(batch_size=self.reading.batch_size)
        members = self.recipe.members or MEMBERS
        plan = plan_heads(self.model, parts.choosing, method, members=members, keep=keep, reading=reading, **self.how)
        plan.save(file)
        facts = dict(plan.provenance["budget"])
        facts |= {"candidates": len(facts["candidates"]), "held_out": facts.pop("examples_held_out")}
        shape = {"layers": plan.layers, "heads": plan.heads, "members": len(plan.members)}
        return {**facts, **shape, "method": plan.method}

    def _whole(self) -> HeadPlan:
        """Return the plan of the single model."""
        return HeadPlan.all_heads(self.architecture.family, self.architecture.layers, self.architecture.heads)

    def _rival(self, space: Workspace, bundle: Path, parts: Parts, calibrating: dict[str, Any]) -> dict[str, Any]:
        """Calibrate the single model on the same data, and store the result beside the bundle's reports."""
        from ..evaluation.fair_rival import build_rival, rival_files

        folder = space.folder / "single"
        shutil.rmtree(folder, ignore_errors=True)  # of an interrupted stage
        facts = build_rival(self.model, folder, parts.fitting, **calibrating).to_json()
        Bundle.open(bundle).add(rival_files(Bundle.open(folder)))
        shutil.rmtree(folder)
        return facts

    def _tuning(self, parts: Parts) -> Jointly:
        """Return how models are tuned: by labels, or by teachers, whose outputs all stages share."""
        if not self.teachers:
            return self.recipe.tuning()
        outputs = self.space.folder / "outputs"
        return replace(self.recipe.teaching(self.teachers, parts.unlabelled), teacher_outputs=outputs)

    def _control_settings(self, parts: Parts) -> dict[str, Jointly]:
        """Return how to tune the single models to compare with, by name."""
        how = self._tuning(parts)
        if self.teachers:
            return {} if self.recipe.single else {TAUGHT_BY_MEAN: how}
        layers = (Bundle.open(self.bundle).plan().fork, 0) if self.recipe.control else ()
        return {name: replace(how, freeze=layer) for name, layer in zip(CONTROL, layers, strict=False)}

    def _measured_teachers(self, parts: Parts) -> dict[str, Any]:
        """Fit the temperature of the teachers' mean on the data that calibrate."""
        from ..evaluation.deep_ensemble import CheckpointMembers
        from ..tuning.loop import measure
        from ..tuning.settings import Settings
        from ..tuning.tuning_data import Source

        members = CheckpointMembers(self.teachers)
        ready = parts.fitting.processor(members.architecture, members.processor)
        source = Source(parts.fitting, ready, members.architecture)
        settings = Settings(self._tuning(parts), self.reading.batch_size, self.how["seed"])
        return {"temperature": measure(members, source, settings)["temperature"]}

    def _controls(self, controls: Mapping[Path, Jointly], parts: Parts, calibrating: dict[str, Any]) -> dict[str, Any]:
        """Tune the single model in other ways than the members, and calibrate each."""
        from ..calib.decisions.calibrate_bundle import calibrate
        from ..tuning import tune

        source, facts = self.space.folder / "whole", {}
        for folder, how in controls.items():
            for place in (source, folder):
                shutil.rmtree(place, ignore_errors=True)  # of an interrupted stage
            self._fuse(self._whole(), source)
            data: dict[str, Any] = {"validation": parts.choosing, "output": folder, "reading": self.all}
            report = tune(source, parts.training, how, **data, **self.how)
            calibrate(folder, parts.fitting, **calibrating)
            facts[folder.name] = {"nll_before": report.nll_before, "nll_after": report.nll_after}
        shutil.rmtree(source)
        return facts

    def _fuse(self, plan: HeadPlan, target: Path) -> dict[str, Any]:
        from ..fusion import fuse, save_bundle
        from ..models.checkpoint import load_processor

        shutil.rmtree(target, ignore_errors=True)  # of an interrupted stage
        target.parent.mkdir(parents=True, exist_ok=True)
        ensemble = fuse(self.model, plan)
        bundle = save_bundle(ensemble, target, load_processor(self.model, self.architecture.modality))
        cost = cost_of(bundle)
        return {"parameters": cost.fused.parameters, "parameters_ratio": cost.fused.parameters / cost.single.parameters}

    def notes(self, parts: Parts) -> list[str]:
        """Measure and time the single model; warn if it fits validation data clearly better than training data."""
        from ..calib.heads.candidates import unpruned
        from ..calib.heads.planning import resolve_processor
        from ..calib.heads.trials import HeldOut, measure
        from ..fusion.ensemble import whole_model
        from ..models.checkpoint import load_model

        shape, whole, trials = self.architecture, whole_model(load_model(self.model)), []
        drawn = np.random.default_rng(self.how["seed"]).permutation(len(parts.training))[: len(parts.choosing)]
        for examples in (parts.choosing, parts.training.take(np.sort(drawn))):
            started = time.perf_counter()
            ready = examples.processor(shape, lambda: resolve_processor(None, self.model, shape))
            held_out = HeldOut(examples, ready, shape, self.reading.batch_size)
            trials += measure(whole, [unpruned(shape)], held_out, progress=self.how["progress"])
            self.seconds = (time.perf_counter() - started) / len(examples)  # of an example; the second run is warm
        self.single, training = trials
        if not self.single.fits_better(training):
            return []
        return noted(SWAPPED)

    def _first(self, untuned: Path, target: Path, parts: Parts) -> dict[str, Any]:
        """Tune the planned members."""
        facts = {"single_accuracy": self.single.accuracy, "single_rmse": self.single.rmse}
        return {**facts, **self._tuned(untuned, target, parts, facts)}

    def _second(self, folder: Path, parts: Parts) -> dict[str, Any]:
        """Plan heads for untuned members, and fuse them unless they equal the first plan."""
        plan = folder / "instead.json"
        facts = self._plan(plan, parts, to_tune=False)
        same = HeadPlan.load(plan).members == HeadPlan.load(folder / "plan.json").members
        if not same:
            self._fuse(HeadPlan.load(plan), folder / "instead")
        return {"instead": facts, "same_heads": same}

    def _tune(self, space: Workspace, target: Path, parts: Parts) -> dict[str, Any]:
        """Return the first tuning's record, or tune the members of the second plan."""
        first, second = space.recorded(FIRST), space.recorded(SECOND)
        if not second:
            return first
        facts = {**first, **second, "why": first["lost"] if first["tuned"] else ""}
        if second["same_heads"]:  # same seed, same result
            return facts
        return {**facts, **self._tuned(space.folder / "instead", target, parts, facts)}

    def _tuned(self, source: Path, target: Path, parts: Parts, single: Mapping[str, Any]) -> dict[str, Any]:
        from ..tuning import tune

        shutil.rmtree(target, ignore_errors=True)  # of an interrupted stage, or of the first tuning
        target.parent.mkdir(exist_ok=True)
        tuning = replace(self._tuning(parts), state=self._state(source))
        data: dict[str, Any] = {"validation": parts.choosing, "output": target, "reading": self.all}
        report = tune(source, parts.training, tuning, **data, **self.how)
        facts = {**report.to_json(), "bundle": target.name, "batch_size": self.reading.batch_size}
        return {"tuned": report.improved, "lost": _lost({**single, **facts}), **facts}

    def _state(self, target: Path) -> Path:
        """Return the folder of a resumable state, which depends on the batch size."""
        return target.with_name(f"{target.name}.{self.reading.batch_size}.part")

    def _tidy(self, space: Workspace, tuned: Mapping[str, Any]) -> None:
        """Delete files that no later stage reads; warn if the tuning had another batch size."""
        for name in ("untuned", "instead"):
            shutil.rmtree(space.folder / name, ignore_errors=True)
        for state in space.folder.glob("*.part*"):
            shutil.rmtree(state) if state.is_dir() else state.unlink(missing_ok=True)
        before, now = tuned.get("batch_size"), self.reading.batch_size
        if before not in (None, now):
            words = "the members were already tuned with batch size %s; to tune with %d, delete %s"
            log.warning(words, before, now, space.folder)


def _lost(facts: Mapping[str, Any]) -> str:
    """Describe an excessive loss of tuned members against the single model; else empty."""
    single, tuned = facts["single_accuracy"], facts["accuracy_after"]
    if single is not None and tuned is not None:
        return "" if accuracy_kept(single, tuned, MARGIN) else f"accuracy {tuned:.3f}, the single model {single:.3f}"
    single, tuned = facts["single_rmse"], facts["rmse_after"]  # regression
    return "" if error_kept(single, tuned, ERROR_MARGIN) else f"RMSE {tuned:.4g}, the single model {single:.4g}"
