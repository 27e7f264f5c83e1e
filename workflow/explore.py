"""``hydrant.explore``: measure quality and cost of a grid of plans (fork × heads × method), untuned or tuned."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bundle.architecture import Architecture
from ..bundle.head_plan import HeadPlan
from ..bundle.store import Bundle
from ..calib.features import Reference
from ..calib.heads.methods import METHODS, Random, check_margin, is_pseudo, method_of
from ..calib.heads.planning import EXAMPLES, data_provenance, resolve_processor
from ..calib.heads.selection import accuracy_kept, error_kept, group_counts
from ..data.data_options import DataOptions
from ..data.examples import Examples, check_apart, random_parts, read_examples
from ..data.fingerprints import fingerprints
from ..errors import InputError, check_plain, check_seed, cut, is_whole, listing, require
from ..models.checkpoint import check_supported, load_model, load_processor, model_labels
from ..models.family_registry import architecture_of
from ..models.plan_cost import cost_of
from ..progress import Progress, no_progress
from ..tuning.settings import BatchEnsemble, Jointly
from .quality import Form, form_of, quality_of

if TYPE_CHECKING:
    from ..calib.heads.choosing import Job
    from ..fusion import FusedClassifier


@dataclass(frozen=True)
class Grid:
    """Grid of plans to measure.

    Attributes:
        forks: layers to fork at (default: the last one, and those a third and half of the way down).
        heads: heads kept in each layer from the fork on (default: about a sixth, a third and two thirds of all).
        methods: rankings of the heads.
        tuning: settings of the tuning on training data.
        max_accuracy_loss: percentage points of accuracy that the chosen plan may lose; for regression, per cent by
            which RMSE may rise.
    """

    forks: Sequence[int] | None = None
    heads: Sequence[int] | None = None
    methods: Sequence[str] = ("taylor", "random")
    tuning: Jointly = field(default_factory=lambda: Jointly(epochs=2))
    max_accuracy_loss: float = 0.5

    def __post_init__(self) -> None:
        check_plain(self)
        check_margin(self.max_accuracy_loss)
        names = [name for name in METHODS if name not in ("circuit", "dropout")]
        if not self.methods or any(method not in names for method in self.methods):
            raise InputError(f"methods is {cut(self.methods)}; expected some of {listing(names)}")

    def points(self, architecture: Architecture) -> Iterator[tuple[int, int, str]]:
        """Return fork, heads and method of every point; raise an error for absent layers or heads."""
        layers, heads = architecture.layers, architecture.heads
        forks = self.forks or sorted({layers - 1, layers - max(1, layers // 3), layers // 2})
        counts = self.heads or sorted({max(1, heads * share // 6) for share in (1, 2, 4)})
        if not all(is_whole(fork, 0, layers - 1) for fork in forks):
            raise InputError(f"forks is {cut(list(forks))}; expected layers of the model, 0 to {layers - 1}")
        if not all(is_whole(count, 1, heads) for count in counts):
            raise InputError(f"heads is {cut(list(counts))}; expected 1 to {heads}")
        yield from product(forks, counts, self.methods)


@dataclass(frozen=True)
class Row:
    """A measured model: ``single model``, ``Deep Ensemble``, or the method of a plan.

    ``fork`` and ``heads`` are ``None`` without a plan. ``tuned``: tuning improved it. ``ratio``: cost relative to the
    single model. Other metrics are those of ``workflow.quality``.
    """

    name: str
    fork: int | None
    heads: int | None
    tuned: bool
    ratio: float
    accuracy: float | None
    nll: float
    ece: float | None
    auroc: float | None
    fpr95: float | None
    mutual_information: float
    rmse: float | None = None

    def keeps(self, single: Any, margin: float) -> bool:
        """True if the accuracy loss is within a margin in points, or for regression in per cent of RMSE."""
        mine: Any = self
        if single.accuracy is not None:
            return accuracy_kept(single.accuracy, mine.accuracy, margin)
        return error_kept(single.rmse, mine.rmse, margin)


@dataclass(frozen=True)
class Exploration:
    """Results of ``explore``: rows, index ``chosen`` and plan ``best``; both ``None`` for the reason ``why``."""

    rows: tuple[Row, ...]
    chosen: int | None
    best: HeadPlan | None
    budget: float
    examples: int
    ood_examples: int
    why: str = ""

    @property
    def plan(self) -> HeadPlan:
        """Return the plan of the chosen point; raises ``InputError`` without one."""
        if self.best is None:
            raise InputError(self.why)
        return self.best

    def to_json(self) -> dict[str, Any]:
        """Return the exploration as a JSON object, without the plan."""
        facts = {name: getattr(self, name) for name in ("budget", "examples", "ood_examples", "chosen")}
        why = {"why": self.why} if self.why else {}
        return {**facts, **why, "rows": [asdict(row) for row in self.rows]}


def explore(
    model: str | Path,
    data: Any,
    ood: Any = None,
    *,
    train: Any = None,
    compare: Sequence[str | Path] = (),
    grid: Grid = Grid(),
    budget: float = 1.0,
    members: int = 3,
    reading: DataOptions = DataOptions(),
    seed: int = 0,
    progress: Progress = no_progress,
) -> Exploration:
    """Measure a grid of plans on validation data, and choose one.

    Candidates are the points within the budget whose accuracy loss is within the margin. The best one detects OOD data
    best by predictive entropy, or without OOD data has the lowest NLL. For token classification, accuracy is per word
    and detection per span; for regression, the margin limits RMSE, and the members' variance detects.

    Args:
        model: checkpoint of a transformers classifier: a folder or hub name.
        data: labelled validation data that the model was not trained on.
        ood: OOD data for measuring; labels are ignored, and ``auto`` is rejected.
        train: labelled training data; measures every plan untuned and tuned.
        compare: checkpoints of a Deep Ensemble to plot beside the plans.
        grid: plans to measure.
        budget: largest cost of the chosen plan, relative to the single model's operations.
        members: number of members.
        reading: columns, number (all) and batch size of the examples.
        seed: of everything random.
        progress: display.

    Raises:
        InputError: unusable data or options, or a budget below every point's cost; before anything is measured.
        UnsupportedModelError: the architecture is not supported.
        MissingExtraError: an extra that is needed is not installed.
    """
    check_supported(model)
    from ..calib.heads.candidates import check_reachable
    from ..calib.heads.choosing import Job  # PyTorch
    from ..calib.heads.plan_search import mean_tokens
    from ..fusion import fuse, save_bundle

    check_seed(seed)
    check_apart(data, ood)
    if is_pseudo(ood):
        raise InputError(f"ood is {cut(ood)}; synthetic data only choose circuits; use a data set, or omit ood")
    if train is not None:
        require("accelerate", "tune", "tune the plans")
    loaded = load_model(model)
    architecture, labels = architecture_of(loaded), model_labels(loaded.config)
    points, together = list(grid.points(architecture)), _together(compare, labels)
    settings: dict[str, Any] = {"labels": labels, "columns": reading, "seed": seed, "task": architecture.task}
    examples = read_examples(data, limit=reading.limit(), **settings)
    if len(examples) < 2:
        raise InputError(f"{examples.source} has {len(examples)} example; expected at least 2 (--data)")
    judging, measuring = random_parts(examples, 2, seed, architecture.task)
    ood_examples = None if ood is None else read_examples(ood, None, columns=reading)
    training = None if train is None else read_examples(train, limit=reading.limit(), **settings)
    ready = resolve_processor(None, model, architecture)
    tokens = mean_tokens(examples, ready, architecture)
    if members > 1:
        check_reachable(architecture, members, budget, forks=sorted({fork for fork, _, _ in points}), sequence=tokens)
    processor = load_processor(model, architecture.modality)
    scoring = read_examples(judging, limit=reading.limit(EXAMPLES), **settings)
    job = Job(loaded, architecture, scoring, None, ready, reading, seed, progress)
    planners = {method: _planner(job, method, members) for method in dict.fromkeys(grid.methods)}
    planned = [planners[method](fork, heads) for fork, heads, method in progress(points, len(points), "planning")]
    check_affordable([cost_of(architecture, plan, sequence=tokens).ratio for plan in planned], budget)
    measured: list[tuple[Row, HeadPlan | None]] = []
    with tempfile.TemporaryDirectory(prefix="hydrant-explore-") as folder:
        form = form_of(architecture.task, _loss(examples, architecture))
        bench = _Bench(Path(folder), judging, measuring, ood_examples, training, form, tokens, grid, reading, seed)
        every = HeadPlan.all_heads(architecture.family, architecture.layers, architecture.heads)
        single = save_bundle(fuse(loaded, every), Path(folder) / "single", processor)
        measured.append((replace(bench.row(single, "single model"), ratio=1.0), None))
        if together is not None:
            deep = save_bundle(together, Path(folder) / "deep", processor)
            measured.append((replace(bench.row(deep, "Deep Ensemble"), ratio=float(together.members)), None))
        steps = zip(points, planned, strict=True)
        for (fork, heads, method), plan in progress(steps, len(points), "exploring plans"):
            bundle = save_bundle(fuse(loaded, plan), Path(folder) / "untuned", processor, force=True)
            measured.append((bench.row(bundle, method, fork, heads), plan))
            if training is not None:
                tuned, better = bench.tuned(bundle, fork)
                measured.append((replace(bench.row(tuned, method, fork, heads), tuned=better), plan))
    rows, plans = zip(*measured, strict=True)
    counts = len(measuring), 0 if ood_examples is None else len(ood_examples)
    return _concluded(Exploration(rows, None, None, budget, *counts), plans, grid.max_accuracy_loss)


def _together(compare: str | Path | Sequence[str | Path], labels: Sequence[str]) -> FusedClassifier | None:
    """Fuse checkpoints into a Deep Ensemble; ``None`` without checkpoints."""
    from ..fusion import fuse

    sources = [compare] if isinstance(compare, str | Path) else list(compare)
    if not sources:
        return None
    ensemble = fuse([load_model(source) for source in sources], keep_separate=["all"])
    if list(ensemble.labels) != list(labels):
        names = f"{listing(ensemble.labels)}; expected the model's classes in its order: {listing(labels)}"
        raise InputError(f"the checkpoints of --compare have the classes {names}")
    return ensemble


def _planner(job: Job, method: str, members: int) -> Callable[[int, int], HeadPlan]:
    """Return a planner by fork and number of heads; heads are scored once for all plans."""
    from ..calib.heads.choosing import Choice

    how, shape = method_of(method), job.architecture
    choice = Choice(job, [how], members)
    used: dict[str, Any] = {"seed": job.seed}
    if not isinstance(how, Random):
        loss = _loss(job.scoring, shape)
        used |= {**data_provenance(job.scoring), **fingerprints(shape.modality, data=job.scoring)}
        used |= {} if loss is None else {"loss": loss}

    def plan(fork: int, heads: int) -> HeadPlan:
        counts = group_counts(heads, members, job.blocks, fork)
        bare = HeadPlan(shape.family, shape.layers, shape.heads, choice.heads(counts), method)
        facts = {**used, **({"fork_from": fork} if fork else {}), **choice.provenance(counts)}
        return replace(bare, provenance={**facts, "keep": bare.head_counts(), "overlap": bare.overlap()})

    return plan


def _concluded(result: Exploration, plans: Sequence[Any], margin: float) -> Exploration:
    """Add the plan of the best point, or the reason why there is none."""
    try:
        chosen = chosen_place(result.rows, result.budget, margin)
    except InputError as error:
        return replace(result, why=str(error))
    best, result = plans[chosen], replace(result, chosen=chosen)
    return replace(result, best=replace(best, provenance={**best.provenance, "explored": result.to_json()}))


def check_affordable(ratios: Sequence[float], budget: float) -> None:
    """Reject a grid in which every point costs more than the budget."""
    if min(ratios) > budget:
        raise InputError(
            f"no explored plan costs at most {budget:g} × the single model's operations; the cheapest costs "
            f"{min(ratios):.3f}; increase the budget, or fork later"
        )


def chosen_place(rows: Sequence[Row], budget: float, margin: float) -> int:
    """Return the index of the best point within budget and margin."""
    points = [(place, row) for place, row in enumerate(rows) if row.fork is not None]
    affordable = [(place, row) for place, row in points if row.ratio <= budget]
    fitting = [(place, row) for place, row in affordable if row.keeps(rows[0], margin)]
    if not fitting:
        raise _too_much_lost(rows[0], [row for _, row in affordable], margin)
    detects = any(row.auroc is not None for _, row in fitting)

    def merit(item: tuple[int, Row]) -> tuple[float, float]:
        row = item[1]
        auroc = row.auroc or 0.0  # None if token classification predicts no span
        return auroc if detects else -row.nll, -row.ratio

    return max(fitting, key=merit)[0]


def _too_much_lost(single: Row, affordable: Sequence[Row], margin: float) -> InputError:
    if single.accuracy is None:
        best = min(row.rmse for row in affordable if row.rmse is not None)
        loss = f"RMSE: the best has {best:.4g}, the single model {single.rmse:.4g}; allowed: {margin:g} % more"
    else:
        best = max(row.accuracy for row in affordable if row.accuracy is not None)
        single_text = f"the single model {single.accuracy:.3f}"
        loss = f"accuracy: the best has {best:.3f}, {single_text}; allowed: {margin:g} points less"
    remedy = "tune on training data (--train), keep more heads, or increase --max-accuracy-loss"
    return InputError(f"no explored plan within the budget preserves the {loss}; {remedy}")


def _loss(examples: Examples, architecture: Architecture) -> str | None:
    """Return the loss that a regression's labels need."""
    if architecture.task != "score":
        return None
    from ..tasks.regression import loss_of

    assert examples.labels is not None  # read_examples requires them
    return loss_of(examples.labels, architecture.score_activation, examples.source)


@dataclass(frozen=True)
class _Bench:
    """Data and options for measuring and tuning every point."""

    folder: Path
    judging: Examples
    measuring: Examples
    ood: Examples | None
    training: Examples | None
    form: Form
    tokens: int | None
    grid: Grid
    reading: DataOptions
    seed: int

    def row(self, bundle: Bundle, name: str, fork: int | None = None, heads: int | None = None) -> Row:
        """Measure a bundle."""
        reference = Reference(bundle, self.reading.batch_size, no_progress)
        activation, data = bundle.architecture().score_activation, (self.judging, self.measuring, self.ood)
        metrics: dict[str, Any] = quality_of(reference, self.form, activation, *data, bundle.labels)
        return Row(name, fork, heads, tuned=False, ratio=cost_of(bundle, sequence=self.tokens).ratio, **metrics)

    def tuned(self, bundle: Bundle, fork: int) -> tuple[Bundle, bool]:
        """Tune the bundle from the fork on; return it, and True if it improved."""
        from ..tuning import tune

        how = self.grid.tuning
        if how.freeze is None and not how.unfreeze and not isinstance(how, BatchEnsemble):
            how = replace(how, freeze=fork)
        report = tune(
            bundle, self.training, how, validation=self.judging, output=self.folder / "tuned",
            force=True, reading=DataOptions(batch_size=self.reading.batch_size, examples=0), seed=self.seed,
        )  # fmt: skip
        return Bundle.open(self.folder / "tuned"), report.improved
