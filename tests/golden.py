"""The golden data that Python and C++ must both match: bundles, inputs, and all fields of their predictions.

    python tests/golden.py FOLDER

Each folder in FOLDER holds ``bundle/``, ``inputs.npz`` (ready tensors) or ``images/``, and ``expected.npz``: the fields
of ``Prediction`` and, for images, ``pixel_values``.
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import PIL
import transformers
from golden_engines import make_engines
from hydrant import Bundle, GraphForm, HeadPlan, Prediction, Predictor
from hydrant.bundle.calibration import Calibration, Conformal, Intervals, LabelDecisions, Threshold
from hydrant.bundle.density_file import has_length
from hydrant.bundle.store import CALIBRATION, DENSITY, WEIGHTS
from hydrant.bundle.strict_json import to_json_bytes
from hydrant.calib.features import standardised_by
from hydrant.calib.mahalanobis import DensityFit
from hydrant.calib.taps import named_taps
from hydrant.models.checkpoint import load_processor
from hydrant.runtime.backends.reference import TorchFeatures
from hydrant.runtime.word_predictions import AGGREGATIONS, UNCERTAINTIES, spans_of
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from support import make_inputs, make_model, make_tokenizer, predicted, random_plan
from token_support import make_tagger

ROWS = 70
"""More than two batches of 32."""

SPAN_SCORES = ("confidence", *UNCERTAINTIES)
WORD_FIELDS = (*SPAN_SCORES, "probabilities", "member_probabilities", "abstain", "out_of_distribution")

SHARED = Path(__file__).parents[2] / "shared"


def make_golden(folder: Path) -> list[Path]:
    """Write every case; CLINC150 only if its checkpoint is available."""
    cases = [
        text_case(folder / "bert", "bert", "aps"),
        text_case(folder / "distilbert", "distilbert", None),
        text_case(folder / "roberta", "roberta", None),
        text_case(folder / "electra", "electra", None),
        text_case(folder / "modernbert", "modernbert", None),
        scores_case(folder / "scores", "identity"),
        scores_case(folder / "scores-sigmoid", "sigmoid"),
        labels_case(folder / "labels", "bert"),
        labels_case(folder / "labels-vit", "vit"),
        tokens_case(folder / "tokens", "bert"),
        tokens_case(folder / "tokens-modernbert", "modernbert"),
        pixels_case(folder / "vit"),
        pixels_case(folder / "clip-classifier"),
        pixels_case(folder / "dinov2"),
        pixels_case(folder / "dinov2_with_registers"),
        pixels_case(folder / "siglip"),
        images_case(folder / "vit-images", {"size": {"height": 12, "width": 12}, "resample": 2}),
        images_case(folder / "vit-crop", {"size": {"shortest_edge": 15}, "resample": 3, "do_center_crop": True,
                                          "crop_size": {"height": 12, "width": 12}}),
        images_case(folder / "vit-plain", {"size": {"height": 12, "width": 12}, "resample": 0, "do_normalize": False}),
        images_case(folder / "clip", {"size": {"shortest_edge": 12}, "crop_size": {"height": 12, "width": 12}}),
    ]  # fmt: skip
    if (SHARED / "models/minilm-clinc150").is_dir():
        cases.append(clinc150_case(folder / "clinc150"))
    make_engines(folder)
    return cases


def text_case(folder: Path, family: str, sets: str | None) -> Path:
    """A tiny text model with a tokenizer, and padded rows of token ids."""
    with tempfile.TemporaryDirectory() as name:
        make_model(family, num_labels=5).save_pretrained(name)
        make_tokenizer(Path(name) / "source").save_pretrained(name)
        bundle = saved(Path(name), "text", random_plan(family, 3), folder)
    inputs = {key: tensor.numpy() for key, tensor in make_inputs(family, ROWS).items()}
    calibrated(bundle, inputs, "mutual_information", sets)
    return exported(folder, inputs, sets is not None)


def scores_case(folder: Path, activation: str) -> Path:
    """A tiny regression model with intervals, and thresholds on distance and variance."""
    stored = {"activation_fn": f"torch.nn.modules.{activation.capitalize()}"}
    model = make_model("bert", num_labels=1, sentence_transformers=stored)
    path = folder / "bundle"
    bundle = hydrant.save_bundle(hydrant.fuse(model, random_plan("bert", 3)), path, tensors_only=True)
    inputs = {key: tensor.numpy() for key, tensor in make_inputs("bert", ROWS).items()}
    bundle = write_density(bundle, inputs)
    prediction = predicted(path, inputs, "torch")
    assert prediction.distance is not None
    names = {"abstain": "score_variance", "ood": "distance"}
    thresholds = {name: Threshold(score, middle(getattr(prediction, score))) for name, score in names.items()}
    bounds = (0.0, 1.0) if activation == "sigmoid" else None
    ends = Intervals(0.9, 1.7, float(np.float32(prediction.score_variance.mean())), 1.0, bounds)
    write_calibration(bundle, Calibration(1.0, thresholds, None, None, ends))
    return exported(folder, inputs, activation == "sigmoid")


def labels_case(folder: Path, family: str) -> Path:
    """A tiny multi-label model with a temperature and threshold per label; images are not calibrated."""
    model = make_model(family, problem_type="multi_label_classification")
    path = folder / "bundle"
    bundle = hydrant.save_bundle(hydrant.fuse(model, random_plan(family, 3)), path, tensors_only=True)
    inputs = {key: tensor.numpy() for key, tensor in make_inputs(family, ROWS).items()}
    if family == "bert":
        temperatures = (0.5, 1.0, 2.0, 0.8, 1.5)
        thresholds = (0.5,) * len(temperatures)
        bundle = write_calibration(bundle, Calibration(labels=LabelDecisions(temperatures, thresholds)))
        bundle = write_density(bundle, inputs)
        prediction = predicted(path, inputs, "torch")
        limits = {name: Threshold(score, middle(getattr(prediction, score)))
                  for name, score in {"abstain": "predictive_entropy", "ood": "energy"}.items()}  # fmt: skip
        thresholds = tuple(middle(column) for column in prediction.probabilities.T)
        write_calibration(bundle, Calibration(1.0, limits, labels=LabelDecisions(temperatures, thresholds)))
    return exported(folder, inputs, family == "bert")


def tokens_case(folder: Path, family: str) -> Path:
    """A tiny token classification model with thresholds on energy and distance."""
    path = folder / "bundle"
    bundle = hydrant.save_bundle(hydrant.fuse(make_tagger(family), random_plan(family, 3)), path, tensors_only=True)
    inputs = {key: tensor.numpy() for key, tensor in make_inputs(family, ROWS).items()}
    bundle = write_density(write_calibration(bundle, Calibration(0.9)), inputs)
    prediction = predicted(path, inputs, "torch")
    thresholds = {
        name: Threshold(score, middle(getattr(prediction, score)[prediction.mask]))
        for name, score in {"abstain": "energy", "ood": "distance"}.items()
    }
    write_calibration(bundle, Calibration(0.9, thresholds))
    exported(folder, inputs, True)
    write_words(folder, inputs)
    return folder


def write_words(folder: Path, inputs: dict[str, np.ndarray]) -> None:
    """Assign random words to the tokens, and write the words' and spans' predictions for every aggregation."""
    draw = np.random.default_rng(0)
    with hydrant.load(folder / "bundle", "onnxruntime") as predictor:
        tokens = predictor.predict(inputs)
        inside = tokens.mask & (np.cumsum(tokens.mask, axis=1) > 1)  # the first token is special
        begins = inside & (draw.random(inside.shape) < 0.6)
        begins[:, 1] |= inside[:, 1]
        words = np.where(inside, np.cumsum(begins, axis=1) - 1, -1)
        starts = np.arange(words.shape[1]) * 3
        offsets = np.where(tokens.mask[:, :, None], np.stack([starts, starts + 2], axis=1) * inside[:, :, None], -1)
        arrays = {"words": words, "offsets": offsets}
        for aggregation in AGGREGATIONS:
            texts = predictor.words(replace(tokens, words=words, offsets=offsets), aggregation)
            joined = Prediction.concatenate([each.prediction for each in texts])
            fields_of = {name: getattr(joined, name) for name in ("label", *WORD_FIELDS)}
            fields_of |= {
                name: np.concatenate([getattr(each, name) for each in texts]) for name in ("index", "start", "end")
            }
            spans = [(row, span) for row, each in enumerate(texts) for span in spans_of(each, predictor.labels)]
            ends = [[row, span.start, span.end, span.first_word, span.last_word, span.label == "PER", span.abstain,
                     span.out_of_distribution] for row, span in spans]  # fmt: skip
            scores = [[getattr(span, name) for name in SPAN_SCORES] for _, span in spans]
            assert len({each[5] for each in ends}) == 2, "spans of both types"
            fields_of |= {"spans": np.array(ends, np.int64), "span_scores": np.array(scores, np.float32)}
            arrays |= {f"{aggregation}.{name}": array for name, array in fields_of.items()}
    np.savez(folder / "words.npz", **arrays)


def pixels_case(folder: Path) -> Path:
    """A tiny image model without a processor, ready pixels, and only an abstention threshold."""
    family, bundle = folder.name, folder / "bundle"
    hydrant.save_bundle(hydrant.fuse(make_model(family), random_plan(family, 3)), bundle)
    inputs = {key: tensor.numpy() for key, tensor in make_inputs(family, ROWS).items()}
    calibrated(bundle, inputs, "confidence", None)
    return exported(folder, inputs, False)


def images_case(folder: Path, settings: dict[str, Any]) -> Path:
    """A tiny image model and image files of all types that both languages read."""
    family, bundle = folder.name.partition("-")[0], folder / "bundle"
    kind = transformers.CLIPImageProcessorPil if family == "clip" else transformers.ViTImageProcessorPil
    hydrant.save_bundle(hydrant.fuse(make_model(family), random_plan(family, 2)), bundle, kind(**settings))
    pictures = write_pictures(folder / "images")
    calibrated(bundle, pictures, "predictive_entropy", "lac")
    hydrant.export_onnx(bundle)
    return expected(folder, pictures)


def clinc150_case(folder: Path) -> Path:
    """The real text model in three random members, and real queries."""
    source = SHARED / "models/minilm-clinc150"
    bundle = saved(source, "text", random_heads(6, 12, 8, members=3), folder)
    texts = (SHARED / "data/clinc150/test.csv").read_text().splitlines()[1:120:3]
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    inputs = dict(tokenizer([line.rpartition(",")[0] for line in texts], padding=True, return_tensors="np"))
    calibrated(bundle, inputs, "predictive_entropy", "lac")
    return exported(folder, inputs, False)


def saved(source: Path, modality: str, plan: HeadPlan, folder: Path) -> Path:
    bundle = folder / "bundle"
    hydrant.save_bundle(hydrant.fuse(source, plan), bundle, load_processor(source, modality))
    return bundle


def random_heads(layers: int, heads: int, keep: int, members: int) -> HeadPlan:
    rng = np.random.default_rng(0)
    heads_of = [
        tuple(tuple(sorted(rng.choice(heads, keep, replace=False).tolist())) for _ in range(layers))
        for _ in range(members)
    ]
    return HeadPlan("bert", layers, heads, tuple(heads_of), "random")


def calibrated(path: Path, inputs: Any, score: str, sets: str | None) -> None:
    """Write a temperature, a distance, sets, and thresholds that split the inputs far from any score."""
    bundle = write_calibration(Bundle.open(path), Calibration(0.9))
    if isinstance(inputs, dict):
        bundle = write_density(bundle, inputs)
    prediction = predicted(path, inputs, "torch")
    thresholds = {"abstain": Threshold(score, middle(getattr(prediction, score)))}
    if sets:
        flags = "expected_entropy" if prediction.distance is None else "distance"
        thresholds["ood"] = Threshold(flags, middle(getattr(prediction, flags)))
    write_calibration(bundle, Calibration(0.9, thresholds, Conformal(sets, 0.1, 0.75) if sets else None))


def write_calibration(bundle: Bundle, calibration: Calibration) -> Bundle:
    return bundle.add({CALIBRATION: to_json_bytes(calibration.to_json())})


def write_density(bundle: Bundle, inputs: dict[str, np.ndarray]) -> Bundle:
    """Fit a distance on the inputs themselves, in two classes."""
    ensemble = hydrant.load_ensemble(bundle)
    (taps,) = named_taps("all", ensemble.architecture, ensemble.trunk, ensemble.members).values()
    with TorchFeatures(ensemble, taps) as model:
        features = model.run(inputs)["features"]
    if ensemble.architecture.every_token:
        features = features.swapaxes(1, 2)[inputs["attention_mask"] > 0]
    fit = DensityFit(taps, len(bundle.labels), ensemble.architecture.width)
    fit.add(features, np.arange(len(features)) % min(2, len(bundle.labels)))
    near = np.random.default_rng(0).gamma(9, 2, (100, len(taps)))
    by_length = has_length(ensemble.architecture) and fit.seen == 2  # regressions take constants
    density = standardised_by(fit.density({}), near, np.resize([2, 3, 5, 9], 100) if by_length else None)
    return bundle.add({DENSITY: density.to_bytes(bundle.digests()[WEIGHTS])})


def middle(scores: np.ndarray) -> float:
    """The middle of the widest gap between neighbouring scores in the middle half."""
    ordered = np.sort(scores)[len(scores) // 4 : -(len(scores) // 4)]
    widest = int(np.diff(ordered).argmax())
    return float(np.float32((ordered[widest] + ordered[widest + 1]) / 2))


def write_pictures(folder: Path) -> list[Path]:
    """Images of many sizes, modes and orientations, with smooth content that survives JPEG."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    images = []
    for index, (width, height) in enumerate([(12, 12), (40, 31), (9, 17), (64, 5), (200, 150), (15, 15)]):
        rows, columns = np.mgrid[:height, :width]
        waves = [np.sin(rows / (3 + c) + columns / (5 - c) + index) * 100 + 128 for c in range(3)]
        pixels = np.clip(np.stack(waves, -1) + rng.normal(0, 12, (height, width, 3)), 0, 255).astype(np.uint8)
        images.append(Image.fromarray(pixels))
    first, wide, tall, strip, large, square = images
    exif = Image.Exif()
    for orientation in range(1, 9):
        exif[0x0112] = orientation
        wide.save(folder / f"turned{orientation}.jpg", quality=90, exif=exif)
    exif[0x0112] = 6
    tall.save(folder / "turned.png", exif=exif)
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="8"/></x:xmpmeta>'
    wide.save(folder / "xmp.jpg", xmp=xmp)  # used without an EXIF orientation
    wide.save(folder / "xmp-and-exif.jpg", xmp=xmp, exif=exif)
    text = PngInfo()
    text.add_itxt("XML:com.adobe.xmp", xmp.decode())
    wide.save(folder / "xmp.png", pnginfo=text)
    first.save(folder / "first.png")
    strip.convert("L").save(folder / "grey.png")
    strip.convert("1").save(folder / "bilevel.png")
    large.save(folder / "large.jpg", quality=75, subsampling=2)
    large.save(folder / "progressive.jpg", quality=95, subsampling=0, progressive=True)
    large.convert("L").save(folder / "grey.jpg")
    square.quantize(7).save(folder / "palette.png")
    square.convert("LA").save(folder / "grey-alpha.png")
    tall.putalpha(Image.fromarray(rng.integers(0, 256, (17, 9), dtype=np.uint8)))
    if int(PIL.__version__.split(".")[0]) >= 13:  # resizes in another order if mostly the height shrinks
        tall.save(folder / "alpha.png")
    return sorted(folder.iterdir())


def exported(folder: Path, inputs: dict[str, np.ndarray], members: bool) -> Path:
    """Export the bundle of a case, and write its tensors and Python's prediction."""
    hydrant.export_onnx(folder / "bundle", form=GraphForm(member_outputs=members))
    np.savez_compressed(folder / "inputs.npz", **inputs)
    return expected(folder, inputs)


def expected(folder: Path, inputs: Any) -> Path:
    """Write Python's prediction."""
    with hydrant.load(folder / "bundle", "onnxruntime") as predictor:
        prediction = predictor.predict(inputs)
        arrays = dict(prediction.arrays)
        if isinstance(inputs, list):
            arrays["pixel_values"] = pixel_values(predictor, inputs)
    np.savez(folder / "expected.npz", **arrays)
    return folder


def pixel_values(predictor: Predictor, paths: list[Path]) -> np.ndarray:
    processor: Any = predictor._processor
    return processor.collate(processor.encode(paths))["pixel_values"]


if __name__ == "__main__":
    for case in make_golden(Path(sys.argv[1])):
        print(case)
