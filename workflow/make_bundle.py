"""``hydrant.make``: every stage from a checkpoint and data to a verified and evaluated bundle."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from ..bundle.manifest import MANIFEST
from ..bundle.reports import MAKE_REPORT
from ..bundle.staging import check_file, check_replaceable, folders_above, staged_folder
from ..bundle.store import Bundle
from ..bundle.strict_json import to_json_bytes
from ..data.data_options import DataOptions
from ..data.data_sources import check_named
from ..data.examples import check_apart
from ..data.raw_inputs import is_words
from ..errors import InputError, check_seed, require
from ..models.checkpoint import check_supported
from ..progress import Progress, no_progress
from .make_inputs import MakeInputs
from .make_stages import CONTROLS, Say, Stages
from .recipe import Recipe
from .stage_summaries import MakeReport
from .workspace import Workspace, link_folder

MAX_SAMPLE = 100
"""Characters of an input to try."""


def make(
    model: str | Path,
    data: Any,
    validation: Any,
    ood: Any = None,
    *,
    output: str | Path,
    recipe: Recipe = Recipe(),
    teachers: Sequence[str | Path] = (),
    unlabelled: Any = None,
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
        teachers: checkpoints to learn from, with the same classes and preprocessing. They are seeds or folds of the
            model, or larger models. One model learns their mean; as many members as teachers learn one each.
        unlabelled: further inputs to learn from, with teachers; labels are ignored.
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
    teachers = [teachers] if isinstance(teachers, str | Path) else list(teachers)
    for each in (model, *teachers):
        check_supported(each)
    check_seed(seed)
    if unlabelled is not None and not teachers:
        raise InputError("unlabelled (--unlabelled) needs teachers (--teachers) to label it; add them, or omit it")
    recipe = recipe.resolved(len(teachers))
    output = Path(output)
    _check_outputs(output, html, force, controls=recipe.control or (bool(teachers) and not recipe.single))
    id_data, ood_data = {"data": data, "validation": validation, "test": test}, {"ood": ood, "test_ood": test_ood}
    for roles in product(id_data, ood_data):
        check_apart(id_data[roles[0]], ood_data[roles[1]], roles)
    for source in (*id_data.values(), *ood_data.values(), unlabelled):
        if isinstance(source, (str, Path)):
            check_named(source)
    needed = ["torch", "onnx", "onnxruntime", "polygraphy", "scipy", "sklearn", "matplotlib"]
    for module in [*needed, *["accelerate"] * (not recipe.single or bool(teachers)), *["jinja2"] * (html is not None)]:
        require(module, "make", "make a bundle")  # importing takes seconds
    if recipe.device == "gpu":  # raises before any work without one
        from ..tuning.loop import open_accelerator

        open_accelerator(recipe.tuning())
    started = time.monotonic()
    with folders_above(output):
        call = MakeInputs(model, recipe, teachers, reading, seed)
        parts = call.read(data, validation, ood, test, test_ood, unlabelled)
        space = Workspace(workspace_of(output), call.digests(parts))
        work = Stages(call, space, output.resolve().name, say, progress)
        with space.alone():
            notes = work.notes(parts)
            stages = work.run(parts, None if html is None else Path(html))
            inputs = (" ".join(each) if is_words(each) else each for each in parts.reporting.inputs)
            texts = (str(each) for each in inputs if isinstance(each, str | Path))
            sample = next((each for each in texts if len(each) <= MAX_SAMPLE and each[:1] not in ("-", "")), None)
            seconds = round(time.monotonic() - started, 1)
            report = MakeReport(output, stages, parts.counts(), seconds, sample, notes)
            _publish(output, space, work.bundle, report, force)
    return report


def _check_outputs(output: Path, html: str | Path | None, force: bool, controls: bool) -> None:
    """Reject outputs that exist, unless they may be replaced, and a page inside them."""
    check_replaceable(output, MANIFEST, force)
    if controls:
        check_replaceable(controls_of(output), CONTROLS, force)
    if html is None:
        return
    for place in (output, workspace_of(output)):
        if Path(html).resolve().is_relative_to(place.resolve()):
            raise InputError(f"html {html} is inside {place}, which is replaced; choose another path")
    check_file(Path(html))


def workspace_of(output: Path) -> Path:
    """Return the folder of the finished stages."""
    place = output.resolve()
    return place.with_name(f"{place.name}.make")


def controls_of(output: Path) -> Path:
    """Return the folder of the tuned single models (``--control``)."""
    return workspace_of(output).with_suffix(".control")


def _publish(output: Path, space: Workspace, made: Path, report: MakeReport, force: bool) -> None:
    """Move the bundle and its report to the output atomically, and delete the workspace."""
    bundle = Bundle.open(made).add({MAKE_REPORT: to_json_bytes(report.stored())})
    with staged_folder(output, MANIFEST, force) as stage:
        link_folder(bundle.path, stage)
    if (space.folder / CONTROLS).is_dir():
        with staged_folder(controls_of(output), CONTROLS, force) as stage:
            link_folder(space.folder / CONTROLS, stage)
            (stage / CONTROLS).touch()
    space.remove()
