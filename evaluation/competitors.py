"""Models under evaluation: bundles on a backend, checkpoints, Deep Ensembles and MC dropout in PyTorch."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..bundle.calibration import Calibration
from ..bundle.graphs import check_all_graphs
from ..bundle.head_plan import HeadPlan
from ..bundle.hub_download import bundle_name
from ..bundle.manifest import MANIFEST
from ..bundle.store import Bundle
from ..bundle.traced import AnyArchitecture
from ..data.examples import Examples
from ..data.processor import Processor, from_transformers
from ..errors import InputError, UnsupportedModelError
from ..models.plan_cost import cost_of
from ..runtime.backends.backend_registry import open_backend
from ..runtime.backends.protocol import Backend
from ..tasks import TASKS
from .deep_ensemble import CheckpointMembers, DeepEnsemble, class_order, operations_of
from .dropout import KIND, DropoutPasses, DropoutSpec, dropout_spec
from .fair_rival import RIVAL, restored_rival, single_model


@dataclass(frozen=True)
class Model:
    """An open model: a ``"bundle"``, ``"checkpoint"``, ``"mc-dropout"``, or one of the following kinds.

    A ``"single"`` is a bundle of one member with all heads, or a checkpoint with the calibration and distance that
    ``make`` stored for it; a ``"control"`` is such a bundle, tuned, and ``"taught"`` one that was tuned from teachers.
    ``"teachers"`` are a Deep Ensemble. ``columns`` [C] are the indices of the first model's classes in this model.
    ``module`` loads its PyTorch module; ``as_bundle`` writes a checkpoint as a bundle. ``twin``: a checkpoint whose
    logits are those of the model before it. ``operations``: of one input; ``None`` for a traced model.
    """

    name: str
    kind: str
    runs: Backend
    precision: str
    processor: Processor
    architecture: AnyArchitecture
    columns: np.ndarray
    plan: HeadPlan
    calibration: Calibration
    module: Callable[[], Any]
    as_bundle: Callable[[Path], Any] | None = None
    twin: bool = False
    bundle: Bundle | None = None
    operations: int | None = None


Competitor = str | Path | DeepEnsemble


def open_models(bundle: Bundle, compare: Sequence[Competitor], backend: str, precision: str | None, opened: ExitStack,
                examples: Examples, seed: int = 0) -> list[Model]:  # fmt: skip
    """Open the bundle and its competitors, in this order."""
    models: list[Model] = []
    named = [each for each in compare if not isinstance(each, DeepEnsemble)]
    for source in (bundle, *compare):
        if isinstance(source, DeepEnsemble):
            opening = [_open_deep_ensemble(source, bundle, opened, examples)]
        elif isinstance(source, Bundle) or (Path(source) / MANIFEST).is_file():
            own = source if isinstance(source, Bundle) else Bundle.open(source)
            opening = [_open_bundle(own, backend, precision, bundle.labels, opened, examples)]
        elif (dropout := dropout_spec(source, named)) is not None:
            opening = [_open_dropout(dropout, bundle, opened, examples, seed)]
        else:
            bare = _open_checkpoint(source, bundle, opened, examples)
            rivals = [] if RIVAL in [each.name for each in models] else [*_rival(bare, bundle, opened)]
            opening = [*rivals, replace(bare, twin=bool(rivals))]
        for model in opening:
            if models:
                _check_alike(models[0], model, examples)
            name, number = model.name, 2
            while name in [other.name for other in models]:
                name, number = f"{model.name} ({number})", number + 1
            models.append(replace(model, name=name))
    return models


def _rival(bare: Model, bundle: Bundle, opened: ExitStack) -> Iterator[Model]:
    """Open the calibrated single model of a checkpoint, if the bundle stores its calibration."""
    from ..fusion import load_reference
    from ..runtime.backends.reference import TorchModule

    folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="hydrant."))) / "single"
    if (rival := restored_rival(bundle, bare.module(), folder)) is not None:
        ensemble = load_reference(rival)
        runs, copy = opened.enter_context(TorchModule(ensemble)), partial(shutil.copytree, folder)
        calibration = Calibration.of(rival)
        yield replace(
            bare, name=RIVAL, kind="single", runs=runs, calibration=calibration, module=lambda: ensemble, as_bundle=copy
        )


def _check_alike(first: Model, other: Model, examples: Examples) -> None:
    """Reject a model of another task, and tensors that the models read differently."""
    if other.architecture.task != first.architecture.task:
        mine, its = (TASKS[each.architecture.task].gives for each in (first, other))
        raise InputError(f"{other.name} returns {its}, but {first.name} {mine}; expected models of the same task")
    for name in ("input_names", "vocabulary", "padding_token", "channels", "image_height", "image_width"):
        mine, its = getattr(first.architecture, name), getattr(other.architecture, name)
        if examples.ready and mine != its:
            names = f"{first.name} and {other.name} read different {name.replace('_', ' ')}, {mine} and {its}"
            raise InputError(f"the data are prepared tensors, but {names}; use raw inputs")


def _open_bundle(
    bundle: Bundle, backend: str, precision: str | None, labels: Sequence[str], opened: ExitStack, examples: Examples
) -> Model:
    check_all_graphs(bundle)
    architecture = bundle.any_architecture()
    runs = opened.enter_context(open_backend(bundle, backend, precision=precision)[0])

    def module() -> Any:
        from ..fusion import load_reference

        return load_reference(bundle)

    plan, tuned = bundle.plan(), bundle.manifest.get("fusion", {}).get("tuned")
    whole = plan.head_counts() == [[plan.heads] * plan.layers]
    kind = "single" if tuned is None else "taught" if tuned.get("teachers") else "control"
    return Model(
        bundle_name(bundle.path),
        kind if whole else "bundle",
        runs,
        runs.precision,
        examples.processor(architecture, lambda: bundle.processor_for("read texts or images")),
        architecture,
        class_order(bundle.labels, labels, bundle.path),
        plan,
        Calibration.of(bundle),
        module,
        bundle=bundle,
        operations=operations_of(architecture)
        if whole or not architecture.is_declared
        else cost_of(bundle).fused.flops,
    )


def _open_checkpoint(
    source: str | Path, bundle: Bundle, opened: ExitStack, examples: Examples, model: Any = None
) -> Model:
    """Open a checkpoint as a single model; ``model`` is the checkpoint if it is loaded already."""
    from ..fusion import save_bundle
    from ..models import checkpoint
    from ..runtime.backends.reference import TorchModule

    ensemble = single_model(_loaded(source, bundle) if model is None else model, source).eval()
    architecture = ensemble.architecture
    place = Path(source).resolve() if Path(source).is_dir() else Path(source)
    module = opened.enter_context(TorchModule(ensemble))
    return Model(
        f"{place.parent.name}/{place.name}" if place.name.isdigit() else place.name,
        "checkpoint",
        module,
        module.precision,
        examples.processor(
            architecture,
            lambda: from_transformers(checkpoint.load_processor(source, architecture.modality), architecture),
        ),
        architecture,
        class_order(ensemble.labels, bundle.labels, source),
        ensemble.plan,
        Calibration(),
        lambda: ensemble,
        partial(save_bundle, ensemble, tensors_only=True),
        operations=operations_of(architecture),
    )


def _open_deep_ensemble(deep: DeepEnsemble, bundle: Bundle, opened: ExitStack, examples: Examples) -> Model:
    """Open checkpoints as the members of one model; one processor prepares the inputs of all."""
    from ..runtime.backends.reference import TorchModule

    temperature = 1.0 if deep.temperature is None else deep.temperature
    members = CheckpointMembers(deep.sources, temperature)
    shape = members.architecture
    return replace(
        _open_checkpoint(deep.sources[members.reader], bundle, opened, examples, members.models[members.reader]),
        name=deep.name,
        kind=deep.kind,
        runs=opened.enter_context(TorchModule(members)),
        processor=examples.processor(shape, members.processor),
        plan=HeadPlan.all_heads(shape.family, shape.layers, shape.heads, members.members),
        calibration=Calibration(temperature=temperature),
        as_bundle=None,
        operations=operations_of(*members.shapes),
    )


def _open_dropout(dropout: DropoutSpec, bundle: Bundle, opened: ExitStack, examples: Examples, seed: int) -> Model:
    """Open a checkpoint with dropout; its passes are members with all heads."""
    from ..models.family_registry import architecture_of
    from ..runtime.backends.reference import TorchModule

    try:
        model = _loaded(dropout.checkpoint, bundle)
        shape = architecture_of(model)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{KIND} supports declared families only: {error}") from None
    single = _open_checkpoint(dropout.checkpoint, bundle, opened, examples, model)
    passes = DropoutPasses(model, dropout.checkpoint, shape, dropout.passes, seed)
    return replace(
        single,
        name=f"{KIND}:{dropout.passes}",
        kind=KIND,
        runs=opened.enter_context(TorchModule(passes)),
        plan=HeadPlan.all_heads(shape.family, shape.layers, shape.heads, dropout.passes),
        as_bundle=None,
        operations=operations_of(*[shape] * dropout.passes),
    )


def _loaded(source: str | Path, bundle: Bundle) -> Any:
    """Load the classifier of a checkpoint; for CLIP, with the prompts of the evaluated bundle."""
    from ..models import checkpoint
    from ..models.zero_shot import load_zero_shot

    if not checkpoint.is_dual_encoder(source):
        return checkpoint.load_model(source)
    recorded = bundle.manifest.get("fusion", {}).get("zero_shot")
    if not isinstance(recorded, dict):
        name = f"{source} is a CLIPModel without classes, and {bundle.path} has no prompts"
        raise InputError(f"{name}; compare with a bundle: `hydrant fuse {source} --classes …`")
    return load_zero_shot(source, recorded)
