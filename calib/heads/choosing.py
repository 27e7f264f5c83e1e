"""Choice of each member's heads by its method."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ...bundle.head_plan import Keep
from ...bundle.staging import discard
from ...bundle.traced import Block
from ...data.data_options import DataOptions
from ...data.examples import Examples
from ...data.processor import Processor
from ...errors import InputError
from ...fusion.ensemble import whole_model
from ...fusion.module import FusedClassifier
from ...models.family_registry import blocks_of
from ...progress import Progress
from .circuits import Counts, find_circuits
from .methods import Circuit, Method, Random, Taylor, deviation, groups_of, name_of, of_members
from .selection import choose_apart, diversify, drawn_facts, drawn_scores, group_scores, heads_of_groups
from .taylor import taylor_scores
from .trials import HeldOut


@dataclass(frozen=True)
class Job:
    """Model and data of a choice of heads: labelled examples, and OOD examples or ``None``."""

    model: Any
    architecture: Any
    scoring: Examples
    ood: Examples | None
    processor: Processor
    reading: DataOptions
    seed: int
    progress: Progress

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The model's attention blocks."""
        return blocks_of(self.model, self.architecture)

    @cached_property
    def module(self) -> FusedClassifier:
        """The whole model, on which plans are tried."""
        return whole_model(self.model)

    def held_out(self, examples: Examples) -> HeldOut:
        """The examples, prepared for trials of plans."""
        return HeldOut(examples, self.processor, self.architecture, self.reading.batch_size)


class AccuracyLossError(InputError):
    """All tried plans lose more accuracy than allowed."""


class Choice:
    """The heads of M members, each chosen by its own method."""

    def __init__(self, job: Job, methods: Sequence[Method], members: int) -> None:
        self.job = job
        self._methods = of_members(methods, members)
        self._groups = groups_of(self._methods)
        self._searches: dict[tuple[tuple[int, ...], ...], tuple[list[Keep], dict[str, Any]]] = {}
        self._states: list[Path] = []
        self._facts: dict[str, dict[str, Any]] = {}
        self.tables = self._tables()

    @property
    def max_accuracy_loss(self) -> float:
        """Percentage points of accuracy that circuits may lose; 100 without circuits."""
        margins = [method.max_accuracy_loss for method in self._methods if isinstance(method, Circuit)]
        return min(margins, default=100.0)

    @property
    def searches(self) -> bool:
        """Return True if heads depend on the head counts of lower layers."""
        return any(isinstance(method, Circuit) for method in self._methods)

    @property
    def drawn(self) -> list[int]:
        """Members with random heads."""
        return [member for member, method in enumerate(self._methods) if isinstance(method, Random)]

    def heads(self, counts: Counts) -> tuple[Keep, ...]:
        """The heads of each member for these counts [M][L]."""
        return tuple(self._chosen(counts)[0])

    def provenance(self, counts: Counts) -> dict[str, Any]:
        """Provenance of a plan with these counts; by method if there are several."""
        facts = {**self._facts, **self._chosen(counts)[1]}
        names = [name_of(method) for method in self._methods]
        if len(self._groups) == 1:
            return facts.get(names[0], {})
        return {"methods": names, **facts}

    @contextmanager
    def searching(self) -> Iterator[Choice]:
        """Delete the state of searches after the block, or after an ``AccuracyLossError``; other errors keep it."""
        loss: AccuracyLossError | None = None
        try:
            yield self
        except AccuracyLossError as error:
            loss = error
        for folder in self._states:
            discard(folder, folder.stem)
        if loss is not None:
            raise loss

    def _tables(self) -> np.ndarray:
        """Scores [M, L, H]; random for circuits, before their search."""
        job, architecture = self.job, self.job.architecture
        tables = drawn_scores(self._methods, architecture.layers, architecture.heads, job.seed)
        if facts := drawn_facts(self._methods):
            self._facts["random"] = facts
        groups = [(method, members) for method, members in self._groups if isinstance(method, Taylor)]
        if groups:
            per_example = taylor_scores(
                job.model, job.scoring, job.processor, architecture,
                batch_size=job.reading.batch_size, progress=job.progress,
            )  # fmt: skip
        for method, members in groups:
            tables[members] = diversify(per_example, len(members), method.diversity, deviation(method), job.seed)
            mean = per_example.mean(axis=0, dtype=np.float64)
            scores = [[float(f"{score:.6g}") for score in row] for row in mean]
            noise = {"noise": deviation(method)} if method.diversity == "noise" else {}
            self._facts["taylor"] = {"diversity": method.diversity, "scores": scores, **noise}
        return tables

    def _chosen(self, counts: Counts) -> tuple[list[Keep], dict[str, Any]]:
        key = tuple(tuple(row) for row in counts)
        if key not in self._searches:
            self._searches[key] = self._choose(key)
        return self._searches[key]

    def _choose(self, counts: tuple[tuple[int, ...], ...]) -> tuple[list[Keep], dict[str, Any]]:
        circuits: dict[int, Keep] = {}
        facts: dict[str, Any] = {}
        for method, members in self._groups:
            if isinstance(method, Circuit):
                keeps, facts["circuit"] = self._circuits(method, [counts[member] for member in members])
                if method.average:
                    return keeps, facts
                circuits.update(zip(members, keeps, strict=True))
        tables = [group_scores(table, self.job.blocks) for table in self.tables]
        groups = choose_apart(tables, counts, self.drawn, circuits)
        return [heads_of_groups(keep, self.job.blocks) for keep in groups], facts

    def _circuits(self, method: Circuit, counts: Counts) -> tuple[list[Keep], dict[str, Any]]:
        """The circuits of some members, and the provenance of their search."""
        job = self.job
        if method.average and any(list(row) != list(counts[0]) for row in counts):
            raise InputError("average needs one keep for all circuits, but keep has several entries; give one")
        state = None if method.state is None else Path(method.state) / f"search {len(self._states)}"
        circuits = find_circuits(
            job.model, job.scoring, job.ood, job.processor, method, counts, job.seed,
            batch_size=job.reading.batch_size, state=state, progress=job.progress,
        )  # fmt: skip
        if state is not None:
            self._states.append(state.parent)
        data = {} if job.ood is None else {"ood": job.ood.name, "ood_examples": len(job.ood)}
        facts: dict[str, Any] = {"objective": method.objective, "masking": method.masking}
        facts |= {"circuits": len(counts), "average": method.average}
        if len(counts) > 1:
            facts["diversity"] = method.diversity
            facts |= {"noise": deviation(method)} if method.diversity == "noise" else {}
        metrics = {"scores": circuits.scores, "validation": {"before": circuits.before, "after": circuits.after}}
        return list(circuits.members), {**data, **facts, **metrics}
