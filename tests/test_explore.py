"""``hydrant plan --explore``: measure and plot a grid of plans, and choose one."""

import csv
import itertools
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import pytest
import torch
from hydrant import Grid, HeadPlan, Reading, estimate_cost, explore
from hydrant.data.examples import Examples
from hydrant.errors import InputError
from hydrant.models.checkpoint import load_processor
from hydrant.models.family_registry import architecture_of
from hydrant.tuning.settings import Jointly
from hydrant.workflow.explore import Row, check_affordable, chosen_place
from support import HEADS, LAYERS, make_model
from transformers import AutoModelForSequenceClassification, BertTokenizerFast

MODULE = sys.modules["hydrant.workflow.explore"]  # the function has the same name
WORDS = ("hello", "world", "transfer", "money", "today", "what", "is", "the", "weather")


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("data")
    texts = [" ".join(words) for words in itertools.permutations(WORDS, 3)]
    np.random.default_rng(0).shuffle(texts)
    parts = {"train": texts[:40], "validation": texts[40:80]}
    for name, rows in parts.items():
        with (folder / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *((text, "abcde"[len(text) % 5]) for text in rows)])
    (folder / "ood.csv").write_text(
        "text\n" + "\n".join(f"{a} {a} {b} {b}" for a, b in itertools.combinations(WORDS, 2))
    )
    return {name: folder / f"{name}.csv" for name in ("train", "validation", "ood")}


def row(**fields: Any) -> Row:
    return replace(Row("taylor", 2, 1, False, 0.9, 0.8, 0.5, 0.1, 0.7, 0.5, 0.0), **fields)


SINGLE = Row("single model", None, None, False, 1.0, 0.8, 0.4, 0.1, 0.9, 0.1, 0.0)


def test_the_best_point_within_budget_and_margin_is_chosen() -> None:
    points = [row(auroc=0.7), row(auroc=0.8), row(auroc=0.85, ratio=1.2), row(auroc=0.9, accuracy=0.794)]
    assert chosen_place([SINGLE, *points], 1.0, 0.5) == 2
    assert chosen_place([SINGLE, *points], 1.3, 0.5) == 3
    assert chosen_place([SINGLE, *points], 1.0, 0.6) == 4
    without = [replace(point, auroc=None, nll=nll) for point, nll in zip(points, (0.3, 0.2, 0.1, 0.1), strict=True)]
    assert chosen_place([SINGLE, *without], 1.0, 0.5) == 2
    assert chosen_place([SINGLE, row(), row(ratio=0.8)], 1.0, 0.5) == 2, "the cheaper of equal plans"
    with pytest.raises(InputError, match=r"the cheapest costs 0\.900"):
        check_affordable([0.9, 1.5], 0.5)
    with pytest.raises(InputError, match=r"the best has 0\.700, the single model 0\.800"):
        chosen_place([SINGLE, row(accuracy=0.7), row(ratio=1.5)], 1.0, 0.5)
    architecture = architecture_of(make_model("bert"))
    assert {fork for fork, _, _ in Grid().points(architecture)} == {LAYERS - 1, LAYERS // 2}
    for grid, name in ((Grid(forks=[3]), "forks"), (Grid(heads=[5]), "heads")):
        with pytest.raises(InputError, match=f"{name} is"):
            list(grid.points(architecture))


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Number of frozen layers of each tuning."""
    counts, tune = [], hydrant.tune

    def noted(*values: Any, **named: Any) -> Any:
        report = tune(*values, **named)
        counts.append(report.frozen)
        return report

    monkeypatch.setattr("hydrant.tuning.tune", noted)
    return counts


def test_every_point_is_measured(tables: dict[str, Path], bert_checkpoint: Path, frozen: list[int]) -> None:
    tuning = Jointly(epochs=1, learning_rate=1e-3)
    grid = Grid(forks=[1, 2], heads=[2], methods=["random"], tuning=tuning, max_accuracy_loss=100)
    result = explore(
        bert_checkpoint, tables["validation"], tables["ood"], train=tables["train"],
        compare=[bert_checkpoint] * 2, grid=grid, budget=3.0, members=2, seed=1,
    )  # fmt: skip
    assert [(each.name, each.fork, each.heads) for each in result.rows] == [
        ("single model", None, None), ("Deep Ensemble", None, None),
        *[("random", 1, 2)] * 2, *[("random", 2, 2)] * 2,
    ]  # fmt: skip
    assert frozen == [1, 2], "tuned from the fork on"
    assert result.rows[1].ratio == 2.0
    assert result.rows[1].accuracy == result.rows[0].accuracy, "two times the same model"
    for each in result.rows[2:]:
        plan = HeadPlan("bert", LAYERS, HEADS, result.plan.members, "x") if each.fork == result.plan.fork else None
        if plan is not None:
            assert each.ratio == pytest.approx(estimate_cost(bert_checkpoint, plan, sequence=5).ratio)
    assert result.plan.head_counts()[0][result.plan.fork :] == [2] * (LAYERS - result.plan.fork)
    assert result.plan.provenance["explored"]["rows"][0]["accuracy"] == result.rows[0].accuracy
    assert result.chosen is not None
    assert result.rows[result.chosen].auroc == max(each.auroc for each in result.rows[2:] if each.auroc is not None)


def test_impossible_explorations_are_refused_before_measuring(
    tables: dict[str, Path], bert_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hydrant.fusion.save_bundle", None)
    settings = {"grid": Grid(forks=[1], heads=[3], methods=["random"]), "reading": Reading(examples=1)}
    with pytest.raises(InputError, match=r"at most 1\.1 × .* the cheapest costs 1\.\d+"):
        explore(bert_checkpoint, tables["validation"], budget=1.1, grid=settings["grid"])
    with pytest.raises(InputError, match=r"validation\.csv has 1 example"):
        explore(bert_checkpoint, tables["validation"], **settings)
    with pytest.raises(InputError, match="ood is 'auto'"):
        explore(bert_checkpoint, tables["validation"], "auto", **settings)


def test_heads_are_planned_as_plan_heads_plans_them(
    tables: dict[str, Path], bert_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, judging = hydrant.models.checkpoint.load_model(bert_checkpoint), []
    halves = MODULE.random_parts

    def recorded(*values: Any) -> list[Examples]:
        parts = halves(*values)
        judging[:] = parts[:1]
        return parts

    monkeypatch.setattr(MODULE, "random_parts", recorded)
    for methods in (["taylor"], ["random"]):
        grid = Grid(forks=[1, 2], heads=[1], methods=methods, max_accuracy_loss=100)
        plan = explore(bert_checkpoint, tables["validation"], grid=grid, budget=3.0, members=2).plan
        processor = load_processor(bert_checkpoint, "text")
        settings = {"members": 2, "keep": plan.head_counts()[0][-1], "processor": processor}
        fork = plan.provenance["fork_from"]
        alone = hydrant.plan_heads(model, judging[0], methods[0], fork_from=fork, **settings)
        facts = {name: fact for name, fact in plan.provenance.items() if name != "explored"}
        assert replace(plan, provenance=facts) == alone


def test_the_single_models_figures_are_those_of_the_original_model(
    tables: dict[str, Path], bert_checkpoint: Path
) -> None:
    grid = Grid(forks=[2], heads=[1], methods=["random"], max_accuracy_loss=100)
    result = explore(bert_checkpoint, tables["validation"], tables["ood"], grid=grid, budget=3.0)
    with tables["validation"].open() as file:
        rows = list(csv.reader(file))[1:]
    order = np.random.default_rng([0, len(rows)]).permutation(len(rows))
    measured = [rows[place] for place in np.sort(order[20:])]
    model = AutoModelForSequenceClassification.from_pretrained(bert_checkpoint).eval()
    with torch.no_grad():
        inputs = BertTokenizerFast.from_pretrained(bert_checkpoint)(
            [text for text, _ in measured], padding=True, return_tensors="pt"
        )
        said = model(**inputs).logits.argmax(dim=-1).numpy()
    right = [int(label) == "abcde".index(name) for label, (_, name) in zip(said, measured, strict=True)]
    assert result.rows[0].accuracy == pytest.approx(np.mean(right))
    assert result.examples == 20
