"""From methods to heads: what each member keeps, as its method says."""

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
from .circuits import Settings, find_circuits
from .methods import Circuit, Method, Random, Taylor, deviation, groups_of, name_of, of_members
from .selection import choose_apart, diversify, drawn_facts, drawn_scores, group_scores, heads_of_groups
from .taylor import taylor_scores
from .trials import HeldOut

Counts = Sequence[Sequence[int]]
"""Heads that each member keeps in each layer, [M][L]; groups of heads where these share their keys."""


@dataclass(frozen=True)
class Job:
    """What heads are chosen for, and on what: labelled examples, and out-of-distribution ones or ``None``."""

    model: Any
    architecture: Any
    scoring: Examples
    unknown: Examples | None
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
        """The whole model as plans are tried on it."""
        return whole_model(self.model)

    def held_out(self, examples: Examples) -> HeldOut:
        """Examples that plans are tried on."""
        return HeldOut(examples, self.processor, self.architecture, self.reading.batch_size)


class AccuracyLossError(InputError):
    """Members lose more accuracy than allowed, however they are chosen."""


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
        """Percentage points that its circuits may lose; without circuits, any."""
        margins = [method.max_accuracy_loss for method in self._methods if isinstance(method, Circuit)]
        return min(margins, default=100.0)

    @property
    def searches(self) -> bool:
        """Whether heads depend on how many the layers below keep."""
        return any(isinstance(method, Circuit) for method in self._methods)

    @property
    def drawn(self) -> list[int]:
        """Members whose heads are drawn at random."""
        return [member for member, method in enumerate(self._methods) if isinstance(method, Random)]

    def heads(self, counts: Counts) -> tuple[Keep, ...]:
        """The heads of each member for these counts [M][L]."""
        return tuple(self._chosen(counts)[0])

    def provenance(self, counts: Counts) -> dict[str, Any]:
        """What a plan of these counts records: by method where there are several."""
        facts = {**self._facts, **self._chosen(counts)[1]}
        names = [name_of(method) for method in self._methods]
        if len(self._groups) == 1:
            return facts.get(names[0], {})
        return {"methods": names, **facts}

    @contextmanager
    def searching(self) -> Iterator[Choice]:
        """Keep the state of searches if the block is interrupted or fails, but for too large a loss of accuracy."""
        lost: AccuracyLossError | None = None
        try:
            yield self
        except AccuracyLossError as error:
            lost = error
        for folder in self._states:
            discard(folder, folder.stem)
        if lost is not None:
            raise lost

    def _tables(self) -> np.ndarray:
        """Scores [M, L, H]; of circuits random ones until the search."""
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
                found, facts["circuit"] = self._circuits(method, [counts[member] for member in members])
                if method.average:
                    return found, facts
                circuits.update(zip(members, found, strict=True))
        tables = [group_scores(table, self.job.blocks) for table in self.tables]
        groups = choose_apart(tables, counts, self.drawn, circuits)
        return [heads_of_groups(keep, self.job.blocks) for keep in groups], facts

    def _circuits(self, method: Circuit, counts: Counts) -> tuple[list[Keep], dict[str, Any]]:
        """The circuits of some members, and what is recorded of the search."""
        job = self.job
        if method.average and any(list(row) != list(counts[0]) for row in counts):
            raise InputError("average is given with a keep for each circuit; expected one keep for all of them")
        wanted = Settings(
            [list(row) for row in counts], method.objective, method.diversity, deviation(method), method.average,
            job.seed, method.masking,
        )  # fmt: skip
        state = None if method.state is None else Path(method.state) / f"search {len(self._states)}"
        found = find_circuits(
            job.model, job.scoring, job.unknown, job.processor, wanted,
            batch_size=job.reading.batch_size, state=state, progress=job.progress,
        )  # fmt: skip
        if state is not None:
            self._states.append(state.parent)
        unknown = {} if job.unknown is None else {"ood": job.unknown.name, "ood_examples": len(job.unknown)}
        facts: dict[str, Any] = {"objective": method.objective, "masking": method.masking}
        facts |= {"circuits": len(counts), "average": method.average}
        if len(counts) > 1:
            facts["diversity"] = method.diversity
            facts |= {"noise": deviation(method)} if method.diversity == "noise" else {}
        figures = {"scores": found.scores, "validation": {"before": found.before, "after": found.after}}
        return list(found.members), {**unknown, **facts, **figures}
