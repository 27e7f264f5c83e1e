"""Post-hoc detection scores against loops in float64, scikit-learn, and pytorch-ood where that is installed."""

import importlib.util
import math
import sys
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from hydrant import fuse
from hydrant.calib import ood_detectors
from hydrant.calib.ood_detectors import Gaussians, Neighbours, VirtualLogit, principal_dimensions
from hydrant.metrics.uncertainty import logit_scores
from hydrant.runtime.backends.reference import TorchSingle
from support import FAMILIES, LAYERS, make_inputs, make_model

pytest.importorskip("sklearn")

WIDTH = 16


def features(count: int, seed: int, classes: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Features [N, WIDTH] float32 around class means, of unequal variance and far from zero; and labels."""
    rng = np.random.default_rng(seed)
    means = np.random.default_rng(7).normal(3, 2, (classes, WIDTH))
    labels = rng.integers(0, classes, count)
    spread = np.linspace(0.2, 2, WIDTH)
    return (means[labels] + spread * rng.standard_normal((count, WIDTH))).astype(np.float32), labels


def last_map(classes: int = 5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(11)
    return rng.normal(0, 0.3, (WIDTH, classes)).astype(np.float32), rng.normal(0, 1, classes).astype(np.float32)


def test_scores_of_logits_by_their_definitions() -> None:
    """Float32 logits of 150 classes; GEN sums over the 100 likeliest."""
    logits = np.random.default_rng(0).normal(0, 3, (20, 150)).astype(np.float32)
    scores = logit_scores(logits)
    for place, row in enumerate(logits.astype(np.float64)):
        total = math.fsum(math.exp(z) for z in row)
        p = sorted((math.exp(z) / total for z in row), reverse=True)
        expected = {
            "max_probability": -p[0],
            "max_logit": -max(row),
            "predictive_entropy": -math.fsum(x * math.log(x) for x in p),
            "energy": -math.log(total),
            "gen": math.fsum((x * (1 - x)) ** 0.1 for x in p[:100]),
        }
        assert set(scores) == set(expected)
        for name, value in expected.items():
            assert scores[name][place] == pytest.approx(value, rel=1e-9), name


@pytest.mark.parametrize("k", [1, 30])
def test_neighbours_by_loops(k: int) -> None:
    train, _ = features(30, 0)
    query, _ = features(7, 1)
    query[0] = 0  # has no direction
    nearest = Neighbours(train, k).distances(query)
    unit = [row / np.linalg.norm(row) for row in train.astype(np.float64)]
    for place, row in enumerate(query.astype(np.float64)):
        one = row / (np.linalg.norm(row) or 1)
        expected = sorted(math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(one, other, strict=True))) for other in unit)
        assert nearest[place] == pytest.approx(expected[k - 1], abs=1e-5)


def distances(train: np.ndarray, labels: np.ndarray, query: np.ndarray) -> Any:
    """Squared distances to the nearest class and to all examples, with scikit-learn's covariances."""
    from sklearn.covariance import OAS

    train, query = train.astype(np.float64), query.astype(np.float64)
    means = {c: train[labels == c].mean(axis=0) for c in set(labels.tolist())}
    within = OAS(assume_centered=True).fit(np.array([row - means[c] for row, c in zip(train, labels, strict=True)]))
    total = OAS().fit(train)
    nearest = [
        min((row - mean) @ np.linalg.solve(within.covariance_, row - mean) for mean in means.values()) for row in query
    ]
    return np.array(nearest), total.mahalanobis(query)


@pytest.mark.parametrize("count", [12, 40, 5000])
def test_gaussians_against_scikit_learn(count: int) -> None:
    """Fewer examples than dimensions, more than one block, and a class without examples."""
    train, labels = features(count, 0, classes=3)
    labels[labels == 2] = 4
    query, _ = features(6, 1)
    squared = Gaussians(train, labels).squared_distances(query)
    for ours, expected in zip(squared, distances(train, labels, query), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5)


def virtual_logits(train: np.ndarray, weight: np.ndarray, bias: np.ndarray, query: np.ndarray) -> np.ndarray:
    """ViM with the singular vectors of the training features, by loops."""
    train, query, weight, bias = (each.astype(np.float64) for each in (train, query, weight, bias))
    origin = np.linalg.lstsq(weight.T, -bias, rcond=None)[0]
    principal = np.linalg.svd(train - origin)[2][: WIDTH // 2]  # rows

    def residual(row: np.ndarray) -> float:
        rest = row - origin
        for direction in principal:
            rest = rest - (rest @ direction) * direction
        return math.sqrt(math.fsum(rest**2))

    alpha = np.mean([max(row @ weight + bias) for row in train]) / np.mean([residual(row) for row in train])
    return np.array([alpha * residual(row) - math.log(sum(np.exp(row @ weight + bias))) for row in query])


def test_virtual_logit_by_loops() -> None:
    train, _ = features(200, 0)
    query, _ = features(9, 1)
    weight, bias = last_map()
    fitted = VirtualLogit(train, (train @ weight + bias).max(axis=1), weight, bias)
    assert fitted.dimensions == WIDTH // 2
    scores = fitted.scores(query, query @ weight + bias)
    np.testing.assert_allclose(scores, virtual_logits(train, weight, bias, query), rtol=1e-5)
    assert [principal_dimensions(width) for width in (2048, 1024, 768, 384)] == [1000, 512, 512, 192]


@pytest.mark.parametrize("family", FAMILIES)
def test_single_model_of_every_family(family: str) -> None:
    """The features of Hugging Face's own model; what the last linear map reads gives the logits."""
    model, inputs = make_model(family), make_inputs(family)
    arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
    with TorchSingle(fuse(model)) as single:
        outputs = single.run(arrays)
    read = outputs.get("penultimate", outputs["features"])
    np.testing.assert_allclose(read @ single.weight + single.bias, outputs["logits"], atol=1e-4)
    assert ("penultimate" in outputs) == (family not in ("vit", "deit", "clip-classifier", "dinov2"))
    if family != "clip":  # CLIP's tower does not run alone here
        with torch.no_grad():
            hidden: Any = model(**inputs, output_hidden_states=True)
        np.testing.assert_allclose(outputs["logits"], hidden.logits.numpy(), atol=1e-4)
        last = hidden.hidden_states[LAYERS]
        if family == "clip-classifier":  # the mean of all patches, as the last layer leaves them
            expected = last.detach()[:, 1:].mean(dim=1).numpy()
        else:
            norm = getattr(getattr(model, family), "layernorm", torch.nn.Identity())
            normed = norm(last).detach()
            expected = normed[:, 0].numpy()
            if family == "dinov2":
                expected = np.concatenate([expected, normed[:, 1:].mean(dim=1).numpy()], axis=1)
        np.testing.assert_allclose(outputs["features"], expected, atol=1e-4)


@pytest.fixture(scope="module")
def detectors() -> Iterator[Any]:
    """``pytorch_ood.detector``, with a stub for torchvision, which its scores do not use."""
    if importlib.util.find_spec("pytorch_ood") is None:
        pytest.skip("pytorch-ood is not installed")
    parts = ("datasets", "datasets.utils", "models", "models.resnet", "transforms", "transforms.functional")
    with pytest.MonkeyPatch.context() as patch:
        if importlib.util.find_spec("torchvision") is None:
            for name in ("torchvision", *(f"torchvision.{part}" for part in parts)):
                patch.setitem(sys.modules, name, MagicMock())
        yield importlib.import_module("pytorch_ood.detector")


def test_scores_of_logits_against_pytorch_ood(detectors: Any) -> None:
    """Its GEN is a mean, and clamps probabilities below 1e-7, which do not occur here."""
    logits = np.random.default_rng(0).normal(0, 1.5, (50, 150)).astype(np.float32)
    scores, tensor = logit_scores(logits), torch.from_numpy(logits)
    theirs = {
        "max_probability": detectors.MaxSoftmax(None),
        "max_logit": detectors.MaxLogit(None),
        "predictive_entropy": detectors.Entropy(None),
        "energy": detectors.EnergyBased(None),
        "gen": detectors.GEN(None, gamma=0.1, M=100),
    }
    assert set(theirs) == set(scores)
    for name, detector in theirs.items():
        expected = detector.predict_logits(tensor).numpy() * (100 if name == "gen" else 1)
        np.testing.assert_allclose(scores[name], expected, rtol=1e-4, err_msg=name)


def test_scores_of_features_against_pytorch_ood(detectors: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its covariances are sums, not means, and not shrunk; its Mahalanobis score is half the squared distance."""
    count = 500
    train, labels = features(count, 0)
    query, _ = features(40, 1)
    weight, bias = last_map()
    fit, classes, new = torch.from_numpy(train), torch.from_numpy(labels), torch.from_numpy(query)
    monkeypatch.setattr(ood_detectors, "shrunk", lambda covariance, _: covariance)
    nearest, background = Gaussians(train, labels).squared_distances(query)
    theirs = detectors.Mahalanobis(None).fit_features(fit, classes).predict_features(new).numpy()
    np.testing.assert_allclose(nearest, 2 * count * theirs, rtol=1e-3)
    theirs = detectors.RMD(None).fit_features(fit, classes).predict_features(new).numpy()
    np.testing.assert_allclose(nearest - background, count * theirs, rtol=1e-2, atol=1e-2)
    theirs = detectors.KNN(None, k=10).fit_features(fit, classes).predict_features(new).numpy()
    np.testing.assert_allclose(Neighbours(train, 10).distances(query), theirs, rtol=1e-4)
    vim = detectors.ViM(None, WIDTH // 2, torch.from_numpy(weight.T.copy()), torch.from_numpy(bias))
    theirs = vim.fit_features(fit, classes).predict_features(new).numpy()
    ours = VirtualLogit(train, (train @ weight + bias).max(axis=1), weight, bias).scores(query, query @ weight + bias)
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)
