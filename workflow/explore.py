"""``hydrant.explore``: a small grid of plans, measured: fork × heads × method, untuned or tuned, against their cost.

Half of the labelled data plans and judges epochs, the other half measures; out-of-distribution data only measure. So
the figures of all points are fair, and that of the point which is chosen by them is a little better than it will be.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from ..bundle.architecture import Architecture
from ..bundle.plan import HeadPlan
from ..bundle.store import Bundle
from ..bundle.tasks import check_classifies
from ..calib.decisions.temperature import fit_temperature
from ..calib.heads.held_out import accuracy_kept
from ..calib.heads.options import METHODS
from ..calib.heads.planning import plan_heads, resolve_processor
from ..cost.estimate import cost_of
from ..data.columns import Reading
from ..data.examples import Examples, check_apart, random_parts, read_examples
from ..errors import InputError, check_plain, check_seed, cut, is_whole, listing
from ..families.checkpoint import check_supported, load_model, load_processor, model_labels
from ..families.registry import architecture_of
from ..measure.features import Reference
from ..metrics import classification as metrics
from ..metrics.uncertainty import summarise
from ..progress import Progress, no_progress
from ..tuning.settings import Jointly

POINTS = 3
"""Forks and head counts that are tried where none are named."""


@dataclass(frozen=True)
class Grid:
    """Which plans are tried.

    Attributes:
        forks: layers to fork at; without them the last one, and those a third and half of the way down.
        heads: heads kept in each layer from the fork on; without them about a sixth, a third and two thirds of all.
        methods: how heads are chosen.
        tuning: how members are tuned where training data are given.
        max_accuracy_loss: percentage points of accuracy that the chosen plan may lose.
    """

    forks: Sequence[int] | None = None
    heads: Sequence[int] | None = None
    methods: Sequence[str] = ("taylor", "random")
    tuning: Jointly = field(default_factory=lambda: Jointly(epochs=2))
    max_accuracy_loss: float = 0.5

    def __post_init__(self) -> None:
        check_plain(self)
        for name, least in (("forks", 0), ("heads", 1)):
            values = getattr(self, name)
            if values is not None and not (len(values) and all(is_whole(value, least) for value in values)):
                raise InputError(f"{name} is {cut(values)}; expected whole numbers of {least} or more")
        known = [name for name in METHODS if name not in ("circuit", "dropout")]
        if not self.methods or any(method not in known for method in self.methods):
            raise InputError(
                f"methods is {cut(self.methods)}; expected some of {listing(known)} (circuits take a search for each "
                "point: plan them by `hydrant plan --method circuit`)"
            )

    def points(self, architecture: Architecture) -> Iterator[tuple[int, int, str]]:
        """Fork, heads and method of every point.

        Raises:
            InputError: a layer or number of heads that the model does not have.
        """
        layers, heads = architecture.layers, architecture.heads
        forks = self.forks or sorted({layers - 1, layers - max(1, layers // 3), layers // 2})
        counts = self.heads or sorted({max(1, heads * share // 6) for share in (1, 2, 4)})
        if max(forks) >= layers:
            raise InputError(f"forks is {cut(list(forks))}; expected layers of the model, 0 to {layers - 1}")
        if max(counts) > heads:
            raise InputError(f"heads is {cut(list(counts))}; expected 1 to {heads}")
        yield from product(forks, counts, self.methods)


@dataclass(frozen=True)
class Row:
    """A model measured.

    Attributes:
        name: ``single model``, ``Deep Ensemble``, or the method.
        fork: first layer where members differ; ``None`` for what is no plan.
        heads: kept in each layer from there on; likewise.
        tuned: whether it was tuned, and an epoch was better than before.
        ratio: operations ÷ those of the plain single model.
        accuracy, nll, ece: of the averaged probabilities, at the temperature that suits the other half of the data.
        auroc, fpr95: of telling out-of-distribution data by predictive entropy; ``None`` without any.
        mutual_information: mean over the examples, nats.
    """

    name: str
    fork: int | None
    heads: int | None
    tuned: bool
    ratio: float
    accuracy: float
    nll: float
    ece: float
    auroc: float | None
    fpr95: float | None
    mutual_information: float


@dataclass(frozen=True)
class Exploration:
    """What ``explore`` found.

    Attributes:
        rows: the single model, the Deep Ensemble where one was given, and every point.
        chosen: place among the rows.
        plan: of the chosen point.
        budget: most operations that it could cost.
        examples, ood_examples: that measured.
    """

    rows: tuple[Row, ...]
    chosen: int
    plan: HeadPlan
    budget: float
    examples: int
    ood_examples: int

    def to_json(self) -> dict[str, Any]:
        """The exploration as a JSON object, without the plan."""
        return {
            "budget": self.budget,
            "examples": self.examples,
            "ood_examples": self.ood_examples,
            "chosen": self.chosen,
            "rows": [asdict(row) for row in self.rows],
        }


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
    reading: Reading = Reading(),
    seed: int = 0,
    progress: Progress = no_progress,
) -> Exploration:
    """Measure a grid of plans on validation data, and choose one.

    Of the points within the budget whose accuracy stays within the margin of the single model's, the one is chosen
    that separates out-of-distribution data best by predictive entropy, or without these the one of the least NLL.

    Args:
        model: checkpoint of a transformers classifier: a folder or hub name.
        data: labelled validation data that the model was not trained on.
        ood: out-of-distribution data, whose labels are not read.
        train: labelled training data; with them every point is measured untuned and tuned.
        compare: checkpoints that together are a Deep Ensemble to draw beside the points.
        grid: which plans are tried.
        budget: most operations that the chosen plan may cost, in those of the plain single model.
        members: number of members.
        reading: columns, number (all) and batch size of the examples.
        seed: of everything random.
        progress: display.

    Raises:
        InputError: unusable data or options, or no point within budget and margin.
        UnsupportedModelError: the architecture is not supported.
        MissingExtraError: an extra that is needed is not installed.
    """
    check_supported(model)
    from ..calib.heads.budget import mean_tokens  # PyTorch
    from ..fusion import fuse, save_bundle

    check_apart(data, ood)
    check_seed(seed)
    loaded = load_model(model)
    architecture, labels = architecture_of(loaded), model_labels(loaded.config)
    check_classifies(architecture.task, "exploring plans", "plan with a budget instead (hydrant plan --budget)")
    points = list(grid.points(architecture))
    known = read_examples(data, labels, columns=reading, limit=reading.limit(), seed=seed)
    judging, measuring = random_parts(known, 2, seed)
    unknown = None if ood is None else read_examples(ood, None, columns=reading)
    training = (
        None if train is None else read_examples(train, labels, columns=reading, limit=reading.limit(), seed=seed)
    )
    ready = resolve_processor(None, model, architecture)
    tokens = mean_tokens(known, ready, architecture)
    rows: list[Row] = []
    plans: list[HeadPlan | None] = []
    with tempfile.TemporaryDirectory(prefix="hydrant-explore-") as folder:
        bench = _Bench(Path(folder), judging, measuring, unknown, training, tokens, grid, reading, seed, progress)
        processor = load_processor(model, architecture.modality)
        everything = HeadPlan.all_heads(architecture.family, architecture.layers, architecture.heads)
        single = save_bundle(fuse(loaded, everything), Path(folder) / "single", processor)
        rows.append(replace(bench.row(single, "single model"), ratio=1.0))
        plans.append(None)
        if compare:
            checkpoints = [load_model(source) for source in compare]
            deep = save_bundle(fuse(checkpoints, keep_separate=["all"]), Path(folder) / "deep", processor)
            rows.append(replace(bench.row(deep, "Deep Ensemble"), ratio=float(len(compare))))
            plans.append(None)
        for fork, heads, method in progress(points, len(points), "exploring plans"):
            plan = plan_heads(
                loaded, judging, method, members=members, keep=heads, fork_from=fork,
                reading=reading, seed=seed, processor=processor,
            )  # fmt: skip
            bundle = save_bundle(fuse(loaded, plan), Path(folder) / "untuned", processor, force=True)
            rows.append(bench.row(bundle, method, fork, heads))
            plans.append(plan)
            if training is not None:
                tuned, better = bench.tuned(bundle)
                rows.append(replace(bench.row(tuned, method, fork, heads), tuned=better))
                plans.append(plan)
    chosen = chosen_place(rows, budget, grid.max_accuracy_loss)
    best = plans[chosen]
    assert best is not None  # what is no plan is never chosen
    found = Exploration(tuple(rows), chosen, best, budget, len(measuring), 0 if unknown is None else len(unknown))
    return replace(found, plan=replace(best, provenance={**best.provenance, "explored": found.to_json()}))


def chosen_place(rows: Sequence[Row], budget: float, margin: float) -> int:
    """The place of the point that is best within budget and margin.

    Raises:
        InputError: there is none.
    """
    points = [(place, row) for place, row in enumerate(rows) if row.fork is not None]
    affordable = [(place, row) for place, row in points if row.ratio <= budget]
    if not affordable:
        cheapest = min(row.ratio for _, row in points)
        raise InputError(
            f"no explored plan costs at most {budget:g} × the single model's operations; the cheapest costs "
            f"{cheapest:.3f}; give a larger budget, or later forks"
        )
    fitting = [(place, row) for place, row in affordable if accuracy_kept(rows[0].accuracy, row.accuracy, margin)]
    if not fitting:
        best = max(row.accuracy for _, row in affordable)
        raise InputError(
            f"no explored plan within the budget keeps the accuracy: the best has {best:.3f}, the single model "
            f"{rows[0].accuracy:.3f}, and {margin:g} points may be lost; give training data to tune on, more heads, or "
            "a larger margin"
        )
    return max(fitting, key=lambda item: (-item[1].nll if item[1].auroc is None else item[1].auroc, -item[1].ratio))[0]


@dataclass(frozen=True)
class _Bench:
    """What every point is measured and tuned on."""

    folder: Path
    judging: Examples
    measuring: Examples
    unknown: Examples | None
    training: Examples | None
    tokens: int | None
    grid: Grid
    reading: Reading
    seed: int
    progress: Progress

    def row(self, bundle: Bundle, name: str, fork: int | None = None, heads: int | None = None) -> Row:
        """A bundle's figures."""
        reference = Reference(bundle, self.reading.batch_size, no_progress)
        judged, _ = reference.run(self.judging, None)
        logits, _ = reference.run(self.measuring, None)
        assert self.judging.labels is not None  # labelled data
        assert self.measuring.labels is not None
        temperature = fit_temperature(judged, self.judging.labels)
        found = summarise(logits, temperature)
        probabilities, labels = found["probabilities"], self.measuring.labels
        auroc = fpr95 = None
        if self.unknown is not None:
            outside = summarise(reference.run(self.unknown, None)[0], temperature)["predictive_entropy"]
            auroc = metrics.auroc(found["predictive_entropy"], outside)
            fpr95 = metrics.fpr95(found["predictive_entropy"], outside)
        return Row(
            name=name,
            fork=fork,
            heads=heads,
            tuned=False,
            ratio=cost_of(bundle, sequence=self.tokens).ratio,
            accuracy=metrics.accuracy(probabilities, labels),
            nll=metrics.negative_log_likelihood(probabilities, labels),
            ece=metrics.expected_calibration_error(probabilities, labels),
            auroc=auroc,
            fpr95=fpr95,
            mutual_information=float(found["mutual_information"].mean()),
        )

    def tuned(self, bundle: Bundle) -> tuple[Bundle, bool]:
        """The bundle tuned, and whether that made it better."""
        from ..tuning import tune

        report = tune(
            bundle, self.training, self.grid.tuning, validation=self.judging, output=self.folder / "tuned",
            force=True, reading=Reading(batch_size=self.reading.batch_size, examples=0), seed=self.seed,
        )  # fmt: skip
        return Bundle.open(self.folder / "tuned"), report.improved
