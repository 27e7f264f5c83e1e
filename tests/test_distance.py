"""Distance in feature space: fitted against scikit-learn, equal on every backend, independent of the batch."""

import json
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import hydrant
import numpy as np
import onnx
import onnx_reference
import onnxruntime
import pytest
import scipy.linalg
import scipy.optimize
import torch
from hydrant import HeadPlan, fuse, save_bundle
from hydrant.bundle.density_file import Density, check_taps
from hydrant.bundle.store import WEIGHTS, Bundle
from hydrant.calib.features import MIN_SCALE, MIN_TEXTS, STEEPEST, best_set, by_set, standardised_by
from hydrant.calib.mahalanobis import DensityFit, squared_distances, standardised
from hydrant.calib.taps import named_taps
from hydrant.cli.prediction_text import prediction_text
from hydrant.errors import BundleError, InputError
from hydrant.export.distance_head import with_distance
from hydrant.fusion import FusedClassifier, load_reference
from hydrant.metrics.gates import SCORES
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import ensemble as by_hooks
from oracle import vectors
from safetensors.torch import save
from sklearn.covariance import OAS
from support import ALL_FAMILIES, CLASSES, HEADS, LAYERS, ROBERTAS, make_inputs, make_model, model_type, predicted
from token_support import CLASSES as TAGGERS
from token_support import make_tagger

EVERY = (*ALL_FAMILIES, *(f"{family}-tags" for family in TAGGERS))
"""Every declared model class: classifiers by family, and token classifiers."""


@cache
def make(case: str, seed: int = 0) -> torch.nn.Module:
    """A tiny model, shared: do not change it."""
    return make_tagger(case.removesuffix("-tags"), seed) if case.endswith("-tags") else make_model(case, seed)


def inputs_of(case: str, batch: int, seed: int) -> dict[str, torch.Tensor]:
    """Inputs of a class; the second text of a classifier has one token."""
    inputs = make_inputs(case.removesuffix("-tags"), batch=batch, seed=seed)
    if lengths_of(case, inputs) is not None:
        inputs["input_ids"][1, 1:], inputs["attention_mask"][1, 1:] = int(case in ROBERTAS), 0
    return inputs


def lengths_of(case: str, inputs: dict[str, torch.Tensor]) -> np.ndarray | None:
    """Numbers of tokens [B], for texts with one distance each."""
    by_length = "attention_mask" in inputs and not case.endswith("-tags")
    return inputs["attention_mask"].sum(dim=1).numpy() if by_length else None


def real(case: str, array: np.ndarray, inputs: dict[str, torch.Tensor]) -> np.ndarray:
    """All rows of a classifier [B, …], or the real tokens [tokens, …] of a tagger's [B, T, …]."""
    return array[inputs["attention_mask"].bool().numpy()] if case.endswith("-tags") else array


def forked(family: str, members: int = 3, fork: int = 1) -> HeadPlan:
    """All heads below the fork, some above it."""
    rng = np.random.default_rng(1)
    keep = tuple(
        tuple(
            tuple(range(HEADS)) if layer < fork else tuple(sorted(rng.choice(HEADS, 2, replace=False).tolist()))
            for layer in range(LAYERS)
        )
        for _ in range(members)
    )
    return HeadPlan(model_type(family.removesuffix("-tags")), LAYERS, HEADS, keep, "random")


def oracle(features: np.ndarray, labels: np.ndarray, inputs: np.ndarray) -> np.ndarray:
    """Squared distance at one tap by scikit-learn, in float64: [N, d], [N], [B, d] → [B]."""
    unit, queries = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (features, inputs))
    classes = np.unique(labels)
    means = np.stack([unit[labels == name].mean(axis=0) for name in classes])
    residuals = unit - means[np.searchsorted(classes, labels)]
    precision = np.linalg.inv(OAS(assume_centered=True).fit(residuals).covariance_)
    apart = queries[:, None] - means[None]
    return np.einsum("bcd,de,bce->bc", apart, precision, apart).min(axis=1)


def fitted(
    features: np.ndarray, labels: np.ndarray, taps: tuple[str, ...], classes: int = CLASSES, rank: int | None = None
) -> Density:
    fit = DensityFit(taps, classes, features.shape[2])
    for part in np.array_split(np.arange(len(labels)), 3):  # as a stream
        fit.add(features[part], labels[part])
    return fit.density({"data": "test"}, rank)


@settings(max_examples=30, deadline=None)
@given(count=st.integers(20, 80), width=st.integers(2, 12), classes=st.integers(1, 6), seed=st.integers(0, 2**16))
def test_fit_is_scikit_learns(count: int, width: int, classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    features = (rng.standard_normal((count, 1, width)) + 3 * rng.standard_normal((classes, 1, width))[labels]).astype(
        np.float32
    )
    inputs = rng.standard_normal((7, 1, width)).astype(np.float32)
    density = fitted(features, labels, ("last.0",), classes)
    expected = oracle(features[:, 0].astype(np.float64), labels, inputs[:, 0].astype(np.float64))
    np.testing.assert_allclose(squared_distances(density, inputs)[:, 0], expected, rtol=2e-4)


def in_subspace(features: np.ndarray, labels: np.ndarray, inputs: np.ndarray, subspace: np.ndarray) -> np.ndarray:
    """Squared distance at one tap behind a linear map [d, r], by NumPy in float64: [N, d], [N], [B, d] → [B]."""
    unit, queries = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (features, inputs))
    means = np.stack([unit[labels == name].mean(axis=0) for name in np.unique(labels)])
    return (((queries[:, None] - means[None]) @ subspace) ** 2).sum(axis=2).min(axis=1)


@settings(max_examples=30, deadline=None)
@given(
    width=st.integers(2, 12), classes=st.integers(1, 6), share=st.floats(0, 1),
    tap=st.sampled_from(["layers.0.mean", "last.0"]), seed=st.integers(0, 2**16),
)  # fmt: skip
def test_a_lower_rank_keeps_separating_directions(width: int, classes: int, share: float, tap: str, seed: int) -> None:
    """Against SciPy's generalised eigenvectors and scikit-learn's covariance, in float64."""
    rng = np.random.default_rng(seed)
    rank = 1 + round(share * (width - 1))
    labels = np.arange(60) % classes
    features = rng.standard_normal((60, 1, width)) + 3 * rng.standard_normal((classes, 1, width))[labels]
    inputs = rng.standard_normal((7, 1, width))
    density = fitted(features, labels, (tap,), classes, rank)
    assert (density.whitening.shape, density.means.shape) == ((1, width, rank), (1, classes, rank))
    distances, subspace = squared_distances(density, inputs)[:, 0], density.whitening[0].astype(np.float64)
    expected = in_subspace(features[:, 0], labels, inputs[:, 0], subspace)
    np.testing.assert_allclose(distances, expected, rtol=1e-3, atol=1e-5 * expected.max())
    if rank == width:  # nothing is left out, and nothing turned
        np.testing.assert_allclose(distances, oracle(features[:, 0], labels, inputs[:, 0]), rtol=1e-3)
        return

    unit = features[:, 0] / np.linalg.norm(features[:, 0], axis=1, keepdims=True)
    means = np.stack([unit[labels == name].mean(axis=0) for name in range(classes)])
    within = OAS(assume_centered=True).fit(unit - means[labels]).covariance_
    first = min(classes - 1, rank // 2 if tap == "last.0" else rank)
    lengths = np.repeat([1.0, (width - first) / max(rank - first, 1)], [first, rank - first])
    np.testing.assert_allclose(subspace.T @ within @ subspace, np.diag(lengths), atol=1e-3 * lengths.max())
    shares = np.bincount(labels) / len(labels)
    values, vectors = scipy.linalg.eigh(np.cov(means.T, bias=True, aweights=shares), within)
    if 0 < first < width and values[-first] > 1.05 * values[-first - 1]:  # otherwise rounding decides
        parting = vectors[:, -first:]  # of length 1 under the covariance: angles between both are cosines
        cosines = np.linalg.svd(parting.T @ within @ subspace[:, :first])[1]
        np.testing.assert_allclose(cosines, 1, atol=2e-3)


def by_lines(near: np.ndarray, lengths: np.ndarray, squared: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Distances with the length by SciPy, in float64: validation [N, K], its tokens [N], [B, K], [B] → [B]."""
    total = np.zeros(len(squared))
    for values, rows in zip(near.T, squared.T, strict=True):
        ends = np.stack([1 - 1 / lengths, 1 / lengths], axis=1)  # of n = ∞ and n = 1
        held = np.vstack([ends, [-1 / STEEPEST, 1 / STEEPEST]])
        location, nearest = np.linalg.lstsq(held, np.append(values, 0))[0]
        slope = nearest - location
        apart = np.abs(values - location - slope / lengths)
        limits = MIN_SCALE * apart.mean(), np.inf
        whole, one = scipy.optimize.lsq_linear(held, np.append(apart, 0), limits, tol=1e-14).x
        factor = np.sqrt(np.mean((apart / (whole + (one - whole) / lengths)) ** 2))
        total += (rows - location - slope / tokens) / (factor * (whole + (one - whole) / tokens))
    return total / near.shape[1]


@settings(max_examples=30, deadline=None)
@given(
    shape=st.tuples(st.integers(MIN_TEXTS, 150), st.integers(1, 3)),
    slope=st.floats(-3, 3),
    longest=st.integers(2, 60),
    seed=st.integers(0, 2**16),
)
def test_lines_in_the_inverse_length(shape: tuple[int, int], slope: float, longest: int, seed: int) -> None:
    """Scales are positive for every length, also where the spread falls to nothing."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, longest + 1, shape[0])
    lengths[:2] = 1, longest
    spread = np.maximum(1 + slope * (1 / lengths - 0.5), 0)[:, None]
    near = 20 + 5 * slope / lengths[:, None] + spread * rng.standard_normal(shape)
    density = fitted(rng.standard_normal((20, shape[1], 4)), np.arange(20) % 2, tuple("abc"[: shape[1]]))
    density = standardised_by(density, near, lengths)
    far, tokens = 30 * rng.random((4, shape[1])), np.array([1, 2, 50, 10_000])
    expected = by_lines(near, lengths, far, tokens)
    np.testing.assert_allclose(standardised(density, far, tokens), expected, rtol=1e-3, atol=1e-3)
    assert np.isfinite(expected).all()
    few, equal = standardised_by(density, near[:50], lengths[:50]), standardised_by(density, near, 0 * lengths + 7)
    for constant, rows in ((few, near[:50]), (equal, near)):
        np.testing.assert_allclose(constant.location, rows.mean(axis=0), rtol=1e-5)
    steep = standardised_by(density, near, np.where(np.arange(len(near)) < 5, 500, 512))
    assert (abs(steep.location_slope) < 5 * near.std(axis=0)).all()  # long texts say nothing about short ones


def test_classes_with_one_example_and_none() -> None:
    features = np.random.default_rng(0).standard_normal((4, 1, 5)).astype(np.float32)
    density = fitted(features, np.array([0, 1, 3, 4]), ("last.0",))
    assert density.means.shape == (1, 4, 5)  # class 2 was not seen
    np.testing.assert_allclose(squared_distances(density, features), 0, atol=1e-5)
    assert squared_distances(density, -features.sum(axis=0, keepdims=True))[0, 0] > 1
    with pytest.raises(InputError, match=r"all 6 examples have the same features at last\.0"):
        fitted(np.ones((6, 1, 5), np.float32), np.array([0, 0, 1, 1, 2, 2]), ("last.0",))


def test_named_taps() -> None:
    text = fuse(make_model("bert"), forked("bert")).architecture
    image = fuse(make_model("vit"), forked("vit")).architecture
    last = ("last.0", "last.1")
    assert list(named_taps("auto", text, 1, 2)) == ["means", "balanced", "all", "last"]
    assert list(named_taps("auto", text, 0, 2)) == ["last"]  # a trunk would add more
    assert list(named_taps("auto", image, 1, 2)) == ["last", "all", "balanced"]
    assert named_taps("all", text, 1, 2) == {"all": ("layers.0.first", "layers.0.mean", *last)}
    deep = replace(text, layers=6)
    assert named_taps("means", deep, 5, 2) == {"means": ("layers.0.mean", "layers.2.mean", "layers.4.mean", *last)}
    assert named_taps("last", text, LAYERS, 2) == {"last": ("last.0",)}  # members that never differ have one
    assert named_taps("1", text, 2, 2) == named_taps([1], text, 2, 2)
    tags = fuse(make_tagger(), forked("bert")).architecture
    both = ("layers.0.token", *last)
    assert named_taps("auto", tags, 1, 2) == {"last": last, "all": both, "balanced": both}
    assert named_taps("1", tags, 2, 2) == {"1": ("layers.1.token", *last)}
    for taps, architecture in ((("layers.0.first",), tags), (("layers.0.token",), text), (("last.0.mean",), tags)):
        with pytest.raises(ValueError, match="of a model of 3 layers and 2 members"):
            check_taps(taps, architecture, 2)
    for wrong, architecture in (("2", text), ("0,0", text), ("first", text), ("means", image)):
        with pytest.raises(InputError, match="expected"):
            named_taps(wrong, architecture, 2, 2)


def test_balanced_taps_count_as_much_as_the_trunk() -> None:
    """The distance of the set is half the trunk's mean and half that of the members' last vectors."""
    rng = np.random.default_rng(3)
    taps = ("layers.0.first", "layers.0.mean", "layers.1.first", "layers.1.mean", "last.0", "last.1")
    features, labels = rng.standard_normal((40, 6, 5)).astype(np.float32), np.arange(40) % 4
    density, ends = fitted(features, labels, taps), fitted(features[:, 4:], labels, taps[4:])
    near, far = rng.gamma(5, 2, (50, 6)), rng.gamma(6, 3, (30, 6))
    density, ends = standardised_by(density, near), standardised_by(ends, near[:, 4:])
    scores = (far - near.mean(axis=0)) / near.std(axis=0)
    expected = (scores[:, :4].mean(axis=1) + scores[:, 4:].mean(axis=1)) / 2
    for name in ("balanced", "means"):
        distances = standardised(by_set(density, name), far)
        np.testing.assert_allclose(distances, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(standardised(by_set(density, "all"), far), scores.mean(axis=1), atol=1e-5)
    np.testing.assert_allclose(
        standardised(by_set(ends, "balanced"), far[:, 4:]), scores[:, 4:].mean(axis=1), atol=1e-5
    )
    near[:, 4:], far[:, 4:] = rng.normal(0, 1, (50, 2)), rng.normal(1.5, 1, (30, 2))  # only these separate
    near[:, :4], far[:, :4] = rng.normal(0, 1, (50, 4)), rng.normal(0, 1, (30, 4))
    sets = {name: by_set(standardised_by(density, near), name) for name in ("all", "balanced")}
    name, areas = best_set(sets, dict.fromkeys(sets, near), dict.fromkeys(sets, far))
    assert name == "balanced"
    assert areas["balanced"] > areas["all"]


@pytest.fixture(scope="module", params=EVERY)
def measured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Bundle, Density]:
    """A bundle of every class of models with a distance fitted to random examples."""
    case = str(request.param)
    return case, *with_density(case, tmp_path_factory.mktemp(case) / "out")


def fused(case: str, fork: int = 1) -> FusedClassifier:
    """A fused model with a temperature, which the energy ignores."""
    ensemble = fuse(make(case), forked(case, fork=fork))
    ensemble.temperature = 1.7
    return ensemble


def with_density(
    case: str, folder: Path, rank: int | None = None, traced: bool = False, constant: bool = False
) -> tuple[Bundle, Density]:
    """A bundle with a distance fitted to random examples, by the length of texts if not constant, and a graph."""
    ensemble = fuse(make(case), forked(case), traced=True) if traced else fused(case)
    name = "last" if traced else "all"
    (taps,) = named_taps(name, ensemble.architecture, ensemble.trunk, ensemble.members).values()
    inputs = inputs_of(case, batch=TRAIN, seed=5)
    with torch.inference_mode():
        outputs = ensemble.features(taps, **inputs)[1].numpy()
    features = real(case, np.moveaxis(outputs, 0, -2), inputs)
    density = fitted(features, np.arange(len(features)) % CLASSES, taps, rank=rank)
    lengths = None if constant else lengths_of(case, inputs)
    density = standardised_by(density, squared_distances(density, features) * factors(len(features)), lengths)
    bundle = save_bundle(ensemble, folder, tensors_only=True)
    hydrant.export_onnx(folder)
    bundle = Bundle.open(folder)
    bundle.add({"density.safetensors": density.to_bytes(bundle.digests()[WEIGHTS])})
    hydrant.export_onnx(folder)
    return Bundle.open(folder), density


TRAIN = MIN_TEXTS
"""Number of training inputs."""


def factors(count: int) -> np.ndarray:
    """Factors that turn training distances into validation distances, [N, 1]."""
    return np.random.default_rng(1).uniform(0.5, 2, (count, 1))


QUERY = {"batch": 16, "seed": 9}
"""Inputs of the comparison with the original model."""


@cache
def expected(case: str, taps: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Distance and energy of the hooked original, in float64, and the squared distance at each tap, [B, K].

    By scikit-learn from the training features to the standardised mean over the taps, and by NumPy from the logits.
    """
    model, plan, inputs = make(case), forked(case), inputs_of(case, **QUERY)
    training = inputs_of(case, batch=TRAIN, seed=5)
    train, features = (original_features(case, batch, taps) for batch in (training, inputs))
    labels = np.arange(len(train)) % CLASSES
    near, squared = (
        np.stack([oracle(train[:, tap], labels, rows[:, tap]) for tap in range(len(taps))], axis=1)
        for rows in (train, features)
    )
    near *= factors(len(near))
    energy = real(case, by_hooks([model], plan, inputs)["energy"], inputs)
    if (lengths := lengths_of(case, training)) is None:
        distance = ((squared - near.mean(axis=0)) / near.std(axis=0)).mean(axis=1)
        return {"distance": distance, "energy": energy, "squared": squared}
    tokens, logs = lengths_of(case, inputs), np.log(lengths)
    distance = by_lines(near, lengths, squared, tokens)
    deviation = (np.log(tokens) - logs.mean()) / logs.std()
    return {"distance": distance, "energy": energy, "squared": squared, "length_deviation": deviation}


def original_features(case: str, inputs: dict[str, torch.Tensor], taps: tuple[str, ...]) -> np.ndarray:
    """Features of the hooked original at the taps, [B, K, d], or of tags [tokens, K, d]."""
    return real(case, np.moveaxis(vectors(make(case), forked(case), inputs, taps), 0, -2), inputs)


FEATURES = {"layers": 3e-5, "last": 2e-5}
"""Largest error of features of up to 20, in float32."""


@pytest.mark.parametrize("fork", [1, LAYERS - 1])
@pytest.mark.parametrize("case", EVERY)
def test_features_and_energy_are_those_of_the_original_model(case: str, fork: int) -> None:
    """Every trunk layer and each member's last vector, against the original with silenced heads."""
    inputs = inputs_of(case, batch=16, seed=3)
    ensemble = fused(case, fork)
    (taps,) = named_taps("all", ensemble.architecture, ensemble.trunk, ensemble.members).values()
    assert {tap.split(".")[1] for tap in taps if tap.startswith("layers.")} == set(map(str, range(fork)))
    assert {tap.split(".")[1] for tap in taps if tap.startswith("last.")} == {"0", "1", "2"}
    with torch.inference_mode():
        features, energy = ensemble.features(taps, **inputs)[1], ensemble(**inputs).energy
    wanted = vectors(make(case), ensemble.plan, inputs, taps)
    for tap, *both in zip(taps, features.numpy(), wanted, strict=True):
        values, vector = (real(case, rows, inputs) for rows in both)
        np.testing.assert_allclose(values, vector, rtol=0, atol=FEATURES[tap.split(".")[0]], err_msg=tap)
    wanted = by_hooks([make(case)], ensemble.plan, inputs)["energy"]
    values, wanted = (real(case, rows, inputs) for rows in (energy.numpy(), wanted))
    np.testing.assert_allclose(values, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("deviation", "aspect"), [(-3.2, "in length"), (2.9, "in content")])
def test_a_flagged_text_is_unlike_in_content_or_length(deviation: float, aspect: str) -> None:
    scores = dict.fromkeys((*SCORES, "confidence", "distance"), 0.5)
    row = {"input": "hello", "label": "greeting", "out_of_distribution": True, "length_deviation": deviation, **scores}
    assert f"out of distribution {aspect}" in prediction_text([row])
    assert ("disagreement" in prediction_text([row]), "disagreement" in prediction_text([row], 1)) == (True, False)


BACKENDS = {"torch": 1e-5, "onnxruntime": 5e-6, "openvino": 5e-6}
"""Largest difference between an input's score alone and in a batch."""


def test_backends_match_the_oracle_alone_and_in_a_batch(measured: tuple[str, Bundle, Density]) -> None:
    """Distance, energy and the deviation of the length."""
    case, bundle, density = measured
    inputs, wanted = inputs_of(case, **QUERY), expected(case, density.taps)
    squared = squared_distances(density, original_features(case, inputs, density.taps))
    np.testing.assert_allclose(squared, wanted["squared"], rtol=1e-5)
    for backend, apart in BACKENDS.items():
        with hydrant.load(bundle, backend) as predictor:
            prediction = predictor.predict({name: tensor.numpy() for name, tensor in inputs.items()})
            assert_mates_change_nothing(predictor, case, apart)
        assert (prediction.length_deviation is None) == ("length_deviation" not in wanted)
        for name in wanted.keys() - {"squared"}:
            rows = real(case, getattr(prediction, name), inputs)
            np.testing.assert_allclose(rows, wanted[name], rtol=2e-5, atol=2e-5, err_msg=f"{backend} {name}")


def assert_mates_change_nothing(predictor: hydrant.Predictor, case: str, apart: float) -> None:
    """Other inputs of a batch and their padding change no distance, energy or length."""
    arrays = {name: tensor.numpy() for name, tensor in inputs_of(case, batch=3, seed=2).items()}
    together = predictor.predict(arrays)
    for row in range(3):
        alone = {name: array[row : row + 1] for name, array in arrays.items()}
        tokens = alone["attention_mask"] > 0 if "attention_mask" in alone else None
        prediction = predictor.predict(
            alone if tokens is None else {name: each[tokens][None] for name, each in alone.items()}
        )
        for name in ("distance", "energy", *["length_deviation"] * (together.length_deviation is not None)):
            one, among = getattr(prediction, name)[0], getattr(together, name)[row]
            among = among[tokens[0]] if among.ndim else among
            message = f"{predictor.backend} row {row} {name}"
            np.testing.assert_allclose(one, among, rtol=0, atol=apart, err_msg=message)


def test_a_lower_rank_is_the_same_on_all_backends(tmp_path: Path) -> None:
    bundle, density = with_density("bert", tmp_path / "out", rank=6, constant=True)
    assert density.to_json()["rank"] == 6
    inputs, labels = make_inputs("bert", batch=6, seed=9), np.arange(TRAIN) % CLASSES
    ensemble = hydrant.load_ensemble(bundle)
    with torch.inference_mode():
        train, features = (
            ensemble.features(density.taps, **tensors)[1].double().numpy()
            for tensors in (inputs_of("bert", batch=TRAIN, seed=5), inputs)
        )
    rows = zip(train, features, density.whitening.astype(np.float64), strict=True)
    squared = np.stack([in_subspace(before, labels, after, to) for before, after, to in rows], axis=1)
    expected = ((squared - density.location) / density.scale).mean(axis=1)
    for backend in ("torch", "onnxruntime", "openvino"):
        prediction = predicted(bundle, {name: tensor.numpy() for name, tensor in inputs.items()}, backend)
        np.testing.assert_allclose(prediction.distance, expected, rtol=2e-3, atol=2e-3, err_msg=backend)
    sizes = {tensor.name: list(tensor.dims) for tensor in onnx.load(bundle.file("model.fp32.onnx")).graph.initializer}
    assert sizes["distance.whitening"] == [len(density.taps), ensemble.architecture.width, 6]


@pytest.mark.usefixtures("network_once")
def test_traced_texts_have_a_distance_by_length(tmp_path: Path) -> None:
    bundle, density = with_density("bert", tmp_path / "out", traced=True)
    inputs, ensemble, labels = inputs_of("bert", **QUERY), load_reference(bundle), np.arange(TRAIN) % CLASSES
    training = inputs_of("bert", batch=TRAIN, seed=5)
    with torch.inference_mode():
        train, features = (ensemble.features(density.taps, **each)[1].double().numpy() for each in (training, inputs))
    near, squared = (
        np.stack([oracle(before, labels, after) for before, after in zip(train, rows, strict=True)], axis=1)
        for rows in (train, features)
    )
    lengths, tokens = (lengths_of("bert", each) for each in (training, inputs))
    expected = by_lines(near * factors(TRAIN), lengths, squared, tokens)
    for backend, apart in BACKENDS.items():
        with hydrant.load(bundle, backend) as predictor:
            distance = predictor.predict({name: tensor.numpy() for name, tensor in inputs.items()}).distance
            assert_mates_change_nothing(predictor, "bert", apart)
        np.testing.assert_allclose(distance, expected, rtol=1e-4, atol=1e-4, err_msg=backend)


NARROW = {"fp16": (5e-3, 4e-2), "bf16": (5e-2, 2e-1)}
"""Mean and largest error of a score in half precision; PyTorch's own energy of the original is as far off."""


def run_narrow(path: Path, inputs: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Outputs of a graph: FP16 by ONNX Runtime; BF16, which it does not run, by the interpreter."""
    arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
    if "bf16" in path.name:
        return onnx_reference.run(onnx.load(path), arrays)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return dict(zip(("distance", "energy"), session.run(["distance", "energy"], arrays), strict=True))


def test_the_head_is_put_on_graphs_of_half_precision(measured: tuple[str, Bundle, Density], tmp_path: Path) -> None:
    """Classes alternate between both precisions."""
    case, bundle, density = measured
    precision: hydrant.metrics.gates.Precision = ("fp16", "bf16")[EVERY.index(case) % 2]
    path = hydrant.export_onnx(shutil.copytree(bundle.path, tmp_path / "out"), precision)
    inputs, wanted, (mean, largest) = inputs_of(case, **QUERY), expected(case, density.taps), NARROW[precision]
    outputs = run_narrow(path, inputs)
    for name in ("distance", "energy"):
        assert outputs[name].dtype == np.float32
        errors = np.abs(real(case, outputs[name], inputs) - wanted[name])
        assert errors.mean() < mean, name
        assert errors.max() < largest, name
    model = onnx.load(path)
    with_distance(model, bundle.architecture(), density)  # again
    onnx.save(model, tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == path.read_bytes()
    with_distance(model, bundle.architecture(), None)
    parts = (*model.graph.node, *model.graph.initializer, *model.graph.output)
    assert not [part.name for part in parts if part.name.startswith(("distance", "length"))]


@pytest.mark.parametrize("measured", ["bert"], indirect=True)
def test_a_density_that_is_not_this_bundles_is_refused(measured: tuple[str, Bundle, Density], tmp_path: Path) -> None:
    case, _, density = measured
    bundle = save_bundle(fuse(make(case, seed=1), forked(case)), tmp_path / "out", tensors_only=True)
    own, arrays = bundle.digests()[WEIGHTS], density.arrays()

    def changed(**others: np.ndarray) -> bytes:
        return Density(density.taps, **{**arrays, **others}).to_bytes(own)

    header = changed()
    facts = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])["__metadata__"]
    wrong: list[tuple[bytes, str]] = [
        (save({name: torch.from_numpy(each).to(torch.bfloat16) for name, each in arrays.items()}, facts), "BF16"),
        (density.to_bytes("0" * 64), "other weights"),
        (b"nonsense", "density"),
        (Density((*density.taps[:-1], "last.9"), **arrays).to_bytes(own), r"last\.9"),
        (changed(scale=0 * density.scale), "scale"),
        (changed(scale_slope=-density.scale), "scale"),
        (header.replace(b'\\"schema\\": 2', b'\\"schema\\": 1'), "tensors"),
        (header.replace(b'\\"schema\\": 2', b'\\"schema\\": 3'), "newest hydrant-uq"),
        (changed(means=np.nan * density.means), "means"),
        (changed(whitening=density.whitening[..., :4]), "means"),
        (changed(whitening=density.whitening[0]), "whitening"),
    ]
    for content, words in wrong:
        Bundle.open(bundle.path).add({"density.safetensors": content})
        with pytest.raises(BundleError, match=words):
            hydrant.load(bundle.path, "torch")
