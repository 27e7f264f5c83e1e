"""Evaluating models of one output: errors, intervals and rankings, against scikit-learn and naive loops."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from hydrant import Figures, Reading
from hydrant.errors import InputError
from hydrant.evaluation.run import evaluate
from hydrant.families.checkpoint import load_processor
from hydrant.metrics.scores import groups_of, normalised_gain, reciprocal_rank
from hypothesis import given, settings
from hypothesis import strategies as st
from support import make_model, make_tokenizer, run_cli

WORDS = ["hello", "world", "transfer", "money", "weather", "today", "what", "is", "the"]
READING = Reading(text="query", text_pair="text")
COLUMNS = ("--text-column", "query", "--text-pair-column", "text")


# Rankings


@given(st.lists(st.integers(0, 3), min_size=2, max_size=25).filter(any), st.integers(0, 10**6))
@settings(deadline=None, max_examples=60)
def test_ndcg_is_scikit_learns(relevance: list[int], seed: int) -> None:
    scores, gains = np.random.default_rng(seed).permutation(len(relevance)).astype(float), np.array(relevance, float)
    expected = sklearn.metrics.ndcg_score([gains], [scores], k=10)
    assert normalised_gain(scores, gains) == pytest.approx(expected)
    order = sorted(range(len(gains)), key=lambda place: -scores[place])[:10]
    first = next((rank for rank, place in enumerate(order, start=1) if gains[place] > 0), None)
    assert reciprocal_rank(scores, gains) == (0 if first is None else 1 / first)


def test_ties_gain_nothing() -> None:
    assert reciprocal_rank(np.zeros(4), np.array([1, 0, 0, 0])) == 0.25
    assert normalised_gain(np.zeros(2), np.array([1.0, 0.0])) == pytest.approx(1 / np.log2(3))


def test_queries_without_an_order_are_left_out() -> None:
    groups = groups_of(["a", "b", "a", "c", "c", "d", "b"], np.array([1, 0, 0, 0, 0, 1, 2]))
    assert [group.tolist() for group in groups] == [[0, 2], [1, 6]]


# Bundles


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Eight queries of ten documents each, for calibration and for the test; and texts of another kind."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)

    def words(least: int, most: int) -> str:
        return " ".join(rng.choice(WORDS, rng.integers(least, most)))

    found = {}
    for name in ("validation", "test"):
        rows = []
        for query in dict.fromkeys(words(3, 6) for _ in range(8)):
            documents = list(dict.fromkeys(words(3, 9) for _ in range(40)))[:10]  # no two alike, whose scores would tie
            rows += [f"{query},{text},{int(place < 2)}" for place, text in enumerate(documents)]
        found[name] = folder / f"{name}.csv"
        found[name].write_text("\n".join(["query,text,label", *rows]) + "\n")
    found["other"] = folder / "other.csv"
    others = [f"[UNK] [MASK],{'[MASK] ' * count}" for count in range(3, 23)]
    found["other"].write_text("\n".join(["query,text", *others]) + "\n")
    return found


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cross-encoder with a sigmoid."""
    folder = tmp_path_factory.mktemp("checkpoint") / "reranker"
    settings = {"activation_fn": "torch.nn.modules.activation.Sigmoid"}
    make_model("bert", num_labels=1, sentence_transformers=settings).save_pretrained(folder)
    make_tokenizer(folder.parent / "source").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bundle(checkpoint: Path, data: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fused, exported and calibrated."""
    folder = tmp_path_factory.mktemp("bundle") / "out"
    plan = hydrant.plan_heads(checkpoint, method="random", keep=2)
    hydrant.save_bundle(hydrant.fuse(checkpoint, plan), folder, load_processor(checkpoint, "text"))
    hydrant.export_onnx(folder)
    hydrant.calibrate(folder, data["validation"], fit=data["validation"], reading=READING, force=True)
    return folder


def table(path: Path) -> tuple[list[tuple[str, str]], np.ndarray]:
    rows = [line.split(",") for line in path.read_text().splitlines()[1:]]
    return [(row[0], row[1]) for row in rows], np.array([float(row[2]) for row in rows])


def test_figures_are_those_of_the_predictions(bundle: Path, data: dict[str, Path], tmp_path: Path) -> None:
    report = evaluate(
        bundle, data["test"], data["other"], figures=Figures(caution=1.0, bootstrap=50), backend="onnxruntime",
        html=tmp_path / "page.html", reading=READING,
    )  # fmt: skip
    pairs, labels = table(data["test"])
    with hydrant.load(bundle) as predictor:
        found = predictor.predict(pairs)
        outside = predictor.predict(table_inputs(data["other"]))
    errors, deviation = labels - found.score, np.sqrt(found.score_variance)
    assert found.interval_low is not None
    assert found.interval_high is not None
    expected: dict[str, Any] = {
        "rmse": np.sqrt((errors**2).mean()),
        "mae": np.abs(errors).mean(),
        "interval_coverage": ((found.interval_low <= labels) & (labels <= found.interval_high)).mean(),
        "interval_width": (found.interval_high - found.interval_low).mean(),
        "correlation": scipy.stats.spearmanr(found.score, labels).statistic,
        "errors.score_variance.spearman": scipy.stats.spearmanr(np.abs(errors), found.score_variance).statistic,
        "ood.distance.auroc": sklearn.metrics.roc_auc_score(
            [0] * len(labels) + [1] * 20,
            np.concatenate([found.distance, outside.distance]),  # type: ignore[arg-type]
        ),
    }
    queries = list(dict.fromkeys(query for query, _ in pairs))
    for suffix, order in (("", found.score), ("_cautious", found.score - deviation)):
        places = [[index for index, (query, _) in enumerate(pairs) if query == each] for each in queries]
        expected[f"ndcg{suffix}"] = np.mean(
            [sklearn.metrics.ndcg_score([labels[own]], [order[own]], k=10) for own in places]
        )
        expected[f"mrr{suffix}"] = np.mean([reciprocal_rank(order[own], labels[own]) for own in places])
    figures = report.models[0].figures
    for name, value in expected.items():
        assert figures[name].value == pytest.approx(value, rel=1e-4, abs=1e-6), name
        assert figures[name].low <= figures[name].value + 1e-9, name
        assert figures[name].high >= figures[name].value - 1e-9, name
    assert np.isfinite(figures["nll"].value)
    decisions = report.models[0].decisions
    assert found.abstain is not None
    assert decisions["coverage"] == pytest.approx((~found.abstain).mean())
    assert decisions["answered_rmse"] == pytest.approx(np.sqrt((errors[~found.abstain] ** 2).mean()), rel=1e-5)
    assert {"false_positive_rate", "true_positive_rate", "ood_abstained"} <= set(decisions)
    page = (tmp_path / "page.html").read_text()
    assert "nDCG@10, cautious" in page
    assert "http" not in page, "everything is inside"
    assert json.loads((bundle / "reports" / "evaluation.json").read_text())["task"] == "score"


def table_inputs(path: Path) -> list[tuple[str, str]]:
    return [(row[0], row[1]) for row in (line.split(",") for line in path.read_text().splitlines()[1:])]


def test_beside_the_single_model_and_its_dropout(bundle: Path, checkpoint: Path, data: dict[str, Path]) -> None:
    ran = run_cli("evaluate", bundle, "--data", data["test"], "--ood", data["other"], *COLUMNS, "--bootstrap", 20,
                  "--compare", checkpoint, f"mc-dropout:2:{checkpoint}")  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    lines = [line for line in ran.stdout.splitlines() if line.startswith(("RMSE ", "nDCG@10 ", "intervals that hold"))]
    assert len(lines) >= 3
    report = json.loads((bundle / "reports" / "evaluation.json").read_text())
    single, passes = report["models"][1:]
    assert "nll" not in single["figures"], "a model without a calibration has neither likelihood nor intervals"
    assert {"rmse", "ndcg", "mrr"} <= set(single["differences"])
    assert passes["members"] == 2
    assert "errors.score_variance.spearman" in passes["figures"]


def test_what_is_for_the_other_task_is_refused(
    bundle: Path, bert_checkpoint: Path, data: dict[str, Path], text_csv: Path, tmp_path: Path
) -> None:
    for options, message in (
        (("--baselines", "--ood", data["other"]), "baselines of a model of one output are of its features alone"),
        (("--caution", "-1"), "caution is '-1.0'; expected a finite number, 0 or more"),
    ):
        ran = run_cli("evaluate", bundle, "--data", data["test"], *COLUMNS, *options)
        assert ran.returncode == 2
        assert ran.stderr.count("\n") == 1
        assert message in ran.stderr
    pairs, labels = table(data["test"])
    documents = [document for _, document in pairs]
    for inputs in (documents, [(f"query {place}", document) for place, document in enumerate(documents)]):
        with pytest.raises(InputError, match="caution"):
            evaluate(bundle, (inputs, labels), figures=Figures(caution=1.0))
    hydrant.save_bundle(hydrant.fuse(bert_checkpoint, members=2), tmp_path / "classes", tensors_only=True)
    with pytest.raises(InputError, match="caution is 1, by which scores are ranked, and this bundle gives one class"):
        evaluate(tmp_path / "classes", text_csv, figures=Figures(caution=1.0))
