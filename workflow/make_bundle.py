"""``hydrant.make``: every stage from a checkpoint and data to a verified and evaluated bundle."""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ..bundle.architecture import Architecture
from ..bundle.head_plan import HeadPlan
from ..bundle.manifest import MANIFEST
from ..bundle.reports import MAKE_REPORT
from ..bundle.staging import check_file, check_replaceable, folders_above, staged_folder
from ..bundle.store import Bundle
from ..bundle.strict_json import to_json_bytes
from ..calib.heads.methods import PSEUDO, Circuit, is_pseudo
from ..calib.heads.selection import accuracy_kept, error_kept
from ..data.data_options import DataOptions
from ..data.data_sources import check_named
from ..data.examples import Examples, check_apart, check_folder, read_examples
from ..data.fingerprints import hashes_of
from ..data.raw_inputs import is_words
from ..errors import InputError, check_seed, require
from ..models.checkpoint import check_supported
from ..models.plan_cost import cost_of
from ..progress import Progress, no_progress
from .data_splits import Parts, check_enough, check_unseen, parted
from .recipe import Recipe
from .stage_summaries import (
    MakeReport,
    behind_line,
    calibrated_line,
    control_line,
    evaluated_line,
    fused_line,
    planned_line,
    tuned_line,
    verified_line,
)
from .time_estimate import estimated_seconds, in_words
from .workspace import Workspace, link_folder

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

MAX_SAMPLE = 100
"""Characters of an input to try."""

UNKNOWN = "unknown"
"""Prefix of the digest of data that cannot be compared with another call's."""

CONTROLS, CONTROL = "control", ("control-above-fork", "control-whole")
"""Folder of the tuned single models in a workspace, and their names."""

OPTIONS = {"abstain": "--coverage", "flags": "--false-alarm"}

CHECKPOINT_FILES = (
    "*config.json", "*.safetensors", "*.safetensors.index.json", "tokenizer*.json", "special_tokens_map.json",
    "added_tokens.json", "vocab*", "merges.txt", "*.model",
)  # fmt: skip


def make(
    model: str | Path,
    data: Any,
    validation: Any,
    ood: Any = None,
    *,
    output: str | Path,
    recipe: Recipe = Recipe(),
    test: Any = None,
    test_ood: Any = None,
    html: str | Path | None = None,
    force: bool = False,
    reading: DataOptions = DataOptions(),
    seed: int = 0,
    say: Say = lambda _: None,
    progress: Progress = no_progress,
) -> MakeReport:
    """Create a bundle that is ready to deploy: plan, fuse, tune, export, calibrate, verify and evaluate.

    The single model is calibrated on the same data, as the fair rival in the report: the verdict says what the members
    add to it.

    Data used for choices are never reported on. The shuffled validation data are split into thirds: for plan and epoch,
    for temperature and thresholds, and without test data for the report. One half of the OOD data chooses the OOD
    score, the other half is reported on.

    Finished stages are saved in ``OUTPUT.make`` until the bundle is complete. The same call resumes after an
    interruption, also with another batch size.

    Args:
        model: checkpoint of a transformers classifier: a folder or hub name.
        data: labelled training data, for tuning and for the distance.
        validation: labelled data that the model was not trained on.
        ood: out-of-distribution (OOD) data; labels are ignored.
        output: bundle folder to create.
        recipe: settings: ``Recipe(budget=1.0, epochs=3)``, ``Recipe(members=1)``.
        test: labelled test data for the report (default: a third of the validation data).
        test_ood: OOD test data for the report (default: half of the OOD data).
        html: write the evaluation report with pictures to one HTML file.
        force: replace an existing bundle at the output folder.
        reading: columns and batch size of all data, and the number (all) of training examples to sample, after all of
            them were compared with the other data.
        seed: of everything random.
        say: called with a line for each stage: its result and reason.
        progress: display for long stages.

    Raises:
        InputError: unusable data or options, validation or test data that were trained on, an existing output, or a
            workspace of another or a running call.
        UnsupportedModelError: the architecture is not supported.
        MissingExtraError: an extra that a stage needs is not installed; before any long work.
        BackendError: the model gives values that are not finite.
    """
    check_supported(model)
    check_seed(seed)
    output = Path(output)
    check_replaceable(output, MANIFEST, force)
    if recipe.control:
        check_replaceable(controls_of(output), CONTROLS, force)
    if html is not None:
        for place in (output, workspace_of(output)):
            if Path(html).resolve().is_relative_to(place.resolve()):
                raise InputError(f"html {html} is inside {place}, which is replaced; choose another path")
        check_file(Path(html))
    labelled, unlabelled = {"data": data, "validation": validation, "test": test}, {"ood": ood, "test_ood": test_ood}
    for roles in product(labelled, unlabelled):
        check_apart(labelled[roles[0]], unlabelled[roles[1]], roles)
    for source in (*labelled.values(), *unlabelled.values()):
        if isinstance(source, (str, Path)):
            check_named(source)
    needed = ["torch", "onnx", "onnxruntime", "polygraphy", "scipy", "sklearn", "matplotlib"]
    for module in [*needed, *["accelerate"] * (not recipe.single), *["jinja2"] * (html is not None)]:
        require(module, "make", "make a bundle")  # importing takes seconds
    if recipe.device == "gpu":  # raises before any work without one
        from ..tuning.loop import open_accelerator

        open_accelerator(recipe.tuning())
    started = time.monotonic()
    with folders_above(output):
        job = _Job(model, output, recipe, reading, seed, say, progress)
        parts = job.read(data, validation, ood, test, test_ood)
        space = Workspace(workspace_of(output), job.digests(parts))
        with space.alone():
            notes = job.notes(parts)
            stages = job.stages(space, parts, None if html is None else Path(html))
            inputs = (" ".join(each) if is_words(each) else each for each in parts.reporting.inputs)
            texts = (str(each) for each in inputs if isinstance(each, str | Path))
            sample = next((each for each in texts if len(each) <= MAX_SAMPLE and each[:1] not in ("-", "")), None)
            seconds = round(time.monotonic() - started, 1)
            report = MakeReport(output, stages, parts.counts(), seconds, sample, notes)
            job.publish(space, report, force)
    return report


def workspace_of(output: Path) -> Path:
    """Return the folder of the finished stages."""
    place = output.resolve()
    return place.with_name(f"{place.name}.make")


def controls_of(output: Path) -> Path:
    """Return the folder of the tuned single models (``--control``)."""
    return workspace_of(output).with_suffix(".control")


class _Job:
    """One call of ``make``: model, options, and stages."""

    def __init__(
        self,
        model: str | Path,
        output: Path,
        recipe: Recipe,
        reading: DataOptions,
        seed: int,
        say: Say,
        progress: Progress,
    ) -> None:
        from ..models.checkpoint import load_model, model_labels, revision_of
        from ..models.family_registry import architecture_of

        self.model, self.output, self.recipe, self.reading, self.say = model, output, recipe, reading, say
        self.how: dict[str, Any] = {"seed": seed, "progress": progress}
        self.all = DataOptions(batch_size=reading.batch_size, examples=0)
        loaded = load_model(model)
        self.revision = revision_of(model)
        self.architecture: Architecture = architecture_of(loaded)
        self.task = self.architecture.task
        self.labels: Sequence[str] = model_labels(loaded.config)

    def read(self, data: Any, validation: Any, ood: Any, test: Any, test_ood: Any) -> Parts:
        """Read and split all data."""
        how: dict[str, Any] = {"columns": self.reading, "seed": self.how["seed"]}
        labelled: Any = partial(read_examples, labels=self.labels, task=self.task, **how)
        unlabelled: Any = partial(read_examples, labels=None, **how)
        id_data = {"training": data, "validation": validation, "test": test}  # all rows, even if fewer are drawn
        ood_data = {"ood": ood, "test_ood": test_ood}
        for source in (*id_data.values(), *ood_data.values()):
            check_folder(source, self.architecture.modality)
        examples: dict[str, Examples] = {}
        for read, sources in ((labelled, id_data), (unlabelled, ood_data)):
            sets = {role: read(source, role=role) for role, source in sources.items() if source is not None}
            check_unseen(sets, self.architecture.modality)
            examples |= sets
        if (limit := self.reading.limit()) is not None:
            examples["training"] = labelled(examples["training"], limit=limit)
        further = {role: examples.get(role) for role in ("test", "ood", "test_ood")}
        parts = parted(examples["training"], examples["validation"], **further, seed=self.how["seed"], task=self.task)
        if self.task != "tokens":  # thresholds are for spans, whose number is unknown
            check_enough(parts.fitting, self.recipe.abstain, self.recipe.flags)
        return parts

    def digests(self, parts: Parts) -> dict[str, str]:
        """Return the SHA-256 of every input of the result; a call resumes only with the same."""
        source = Path(self.model)
        data: dict[str, Any] = {}
        for name, examples in vars(parts).items():
            labels = None if examples is None or examples.labels is None else np.asarray(examples.labels).tobytes()
            data[name] = [self._inputs(examples), None if labels is None else hashlib.sha256(labels).hexdigest()]
        recipe, method = self.recipe, self.recipe.method
        if isinstance(method, Circuit) and method.ood is not None and not is_pseudo(method.ood):
            data["method"] = self._inputs(read_examples(method.ood, None, columns=self.reading))
            recipe = replace(recipe, method=replace(method, ood=PSEUDO))
        facts = {
            "model": [str(source.resolve()), _files(source)] if source.is_dir() else [str(source), self.revision],
            "data": data,
            **{OPTIONS.get(name, name): repr(value) for name, value in vars(recipe).items()},
            "seed": self.how["seed"],
        }
        digests = {name: hashlib.sha256(json.dumps(each).encode()).hexdigest() for name, each in facts.items()}
        if any(UNKNOWN in each for each in data.values()):
            log.warning(
                "the data have inputs other than texts, files, images and tensors of numbers; this call cannot be "
                "resumed if it is interrupted"
            )
            digests["data"] = UNKNOWN + secrets.token_hex()
        return digests

    def _inputs(self, examples: Examples | None) -> str | None:
        """Return the SHA-256 of inputs in their order; :data:`UNKNOWN` if they have no hash."""
        if examples is None:
            return None
        hashes = hashes_of(examples.inputs, self.architecture.modality)
        return UNKNOWN if hashes is None else hashlib.sha256(json.dumps(hashes).encode()).hexdigest()

    def stages(self, space: Workspace, parts: Parts, html: Path | None) -> dict[str, Any]:
        """Run every unfinished stage in order; return all records."""
        from ..calib.decisions.calibrate_bundle import calibrate
        from ..evaluation.evaluator import evaluate
        from ..evaluation.verifier import verify
        from ..export import export_onnx

        single = self.recipe.single
        untuned, bundle = space.folder / "untuned", self._bundle(space)
        records: dict[str, Any] = {}
        every: dict[str, Any] = {"reading": self.all, **self.how}
        targets = {name: getattr(self.recipe, name) for name in ("abstain", "flags", "distance_form")}
        measured = parts.reporting, parts.unknown_reporting

        def stage(name: str, line: Callable[[dict[str, Any]], str], work: Callable[[], dict[str, Any]]) -> None:
            records[name] = space.stage(name, work)
            self.say(f"{name:<10}{space.summary(name, line)}")

        plan = space.folder / "plan.json"
        if not single:
            stage("plan", planned_line, lambda: self._plan(plan, parts, to_tune=True))
        if not space.recorded("fuse"):
            seconds = estimated_seconds(self.seconds, parts, self.recipe)
            self.say(f"time      {in_words(seconds)} for the rest at the present load")
        if single:
            stage("fuse", fused_line, lambda: self._fuse(self._whole(), bundle))
        else:
            stage("fuse", fused_line, lambda: self._fuse(HeadPlan.load(plan), untuned))
            space.stage(FIRST, lambda: self._first(untuned, bundle, parts))
            if space.summary(FIRST, behind_line):
                space.stage(SECOND, lambda: self._second(space.folder, parts))
            stage("tune", tuned_line, lambda: self._tune(space, bundle, parts))
            self._tidy(space, records["tune"])
        exported = "{graph}, checked".format_map
        stage("export", exported, lambda: {"graph": export_onnx(bundle, progress=self.how["progress"]).name})
        calibrating = {"fit": parts.training, "ood": parts.unknown_fitting, **targets, **every}
        stage("calibrate", calibrated_line, lambda: calibrate(bundle, parts.fitting, **calibrating).to_json())
        if not single:
            stage("single", calibrated_line, lambda: self._rival(space, bundle, parts, calibrating))
        controls = []
        if self.recipe.control:
            controls = [space.folder / CONTROLS / name for name in CONTROL]
            stage("control", control_line, lambda: self._controls(controls, bundle, parts, calibrating))
        stage("verify", verified_line, lambda: verify(bundle, data=parts.reporting, **self.how).to_json())
        if html is not None and not (html.is_file() and space.recorded("evaluate").get("html") == str(html)):
            space.forget("evaluate")  # it also writes the page
        stage(
            "evaluate", evaluated_line,
            lambda: evaluate(bundle, *measured, compare=[self.model, *controls], html=html, **every).to_json(),
        )  # fmt: skip
        return records

    def publish(self, space: Workspace, report: MakeReport, force: bool) -> None:
        """Move the bundle and its report to the output atomically, and delete the workspace."""
        bundle = Bundle.open(self._bundle(space)).add({MAKE_REPORT: to_json_bytes(report.stored())})
        with staged_folder(self.output, MANIFEST, force) as stage:
            link_folder(bundle.path, stage)
        if self.recipe.control:
            with staged_folder(controls_of(self.output), CONTROLS, force) as stage:
                link_folder(space.folder / CONTROLS, stage)
                (stage / CONTROLS).touch()
        space.remove()

    def _bundle(self, space: Workspace) -> Path:
        """Return the path of the unfinished bundle, under its final name."""
        return space.folder / "tuned" / self.output.resolve().name

    def _plan(self, file: Path, parts: Parts, *, to_tune: bool) -> dict[str, Any]:
        from ..calib.heads.methods import Budget
        from ..calib.heads.planning import plan_heads

        method = self.recipe.methods(parts.unknown_fitting, self.task, self._state(file))
        keep = Budget(self.recipe.limit(self.architecture), to_tune)
        reading = DataOptions(batch_size=self.reading.batch_size)
        members = self.recipe.members
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

    def _controls(
        self, controls: Sequence[Path], bundle: Path, parts: Parts, calibrating: dict[str, Any]
    ) -> dict[str, Any]:
        """Tune the single model as the members were, above their fork and as a whole, and calibrate both."""
        from ..calib.decisions.calibrate_bundle import calibrate
        from ..tuning import tune

        source, facts = controls[0].parent.with_name("whole"), {}
        for folder, freeze in zip(controls, (Bundle.open(bundle).plan().fork, 0), strict=True):
            for place in (source, folder):
                shutil.rmtree(place, ignore_errors=True)  # of an interrupted stage
            self._fuse(self._whole(), source)
            how = replace(self.recipe.tuning(), freeze=freeze)
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
        log.warning("%s", SWAPPED)
        return [SWAPPED]

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
        tuning = replace(self.recipe.tuning(), state=self._state(source))
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


def _files(folder: Path) -> list[tuple[str, int, int]]:
    """Return name, size and time of a checkpoint's files; other files in its folder are ignored."""
    files = {file for pattern in CHECKPOINT_FILES for file in folder.glob(pattern) if file.is_file()}
    return sorted((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files)


def _lost(facts: Mapping[str, Any]) -> str:
    """Describe an excessive loss of tuned members against the single model; else empty."""
    single, tuned = facts["single_accuracy"], facts["accuracy_after"]
    if single is not None and tuned is not None:
        return "" if accuracy_kept(single, tuned, MARGIN) else f"accuracy {tuned:.3f}, the single model {single:.3f}"
    single, tuned = facts["single_rmse"], facts["rmse_after"]  # regression
    return "" if error_kept(single, tuned, ERROR_MARGIN) else f"RMSE {tuned:.4g}, the single model {single:.4g}"
