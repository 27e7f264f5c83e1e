"""Ready tensors instead of raw inputs, for models with custom preprocessing."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hydrant
import numpy as np
import pytest
import torch
from hydrant import Circuit, Figures, HeadPlan, Reading, plan_heads
from hydrant.data.examples import read_examples
from hydrant.data.tensors import TensorProcessor, checked_tensors
from hydrant.errors import InputError
from hydrant.evaluation.evaluator import evaluate
from hydrant.export import export
from hydrant.models.checkpoint import load_model, load_processor
from hydrant.models.family_registry import architecture_of
from hydrant.progress import no_progress
from hydrant.tuning import tuning_data
from hydrant.tuning.settings import Jointly, Settings
from hydrant.tuning.tuning_data import Source
from support import HEADS, LAYERS, make_model

LABELS = list("abcde")


@pytest.fixture(scope="module")
def tensors(text_csv: Path, bert_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The labelled texts as tensors from a user's own code; every row is padded."""
    path = tmp_path_factory.mktemp("tensors") / "train.npz"
    examples = read_examples(text_csv, LABELS)
    arrays = load_processor(bert_checkpoint, "text")(list(examples.inputs), padding="max_length", max_length=12)
    np.savez(path, **{name: np.array(rows) for name, rows in arrays.items()}, y=np.asarray(examples.labels))
    return path


@pytest.fixture(scope="module")
def bare(bert_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint without its tokenizer."""
    folder = tmp_path_factory.mktemp("bare") / "bert"
    load_model(bert_checkpoint).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bundle(bare: Path, tensors: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle planned on ready tensors, which accepts nothing else."""
    folder = tmp_path_factory.mktemp("bundle") / "out"
    plan = plan_heads(bare, tensors, keep=2)
    hydrant.save_bundle(hydrant.fuse(bare, plan), folder, tensors_only=True)
    hydrant.export_onnx(folder)
    return folder


def test_plans_of_tensors_are_those_of_the_texts(
    bare: Path, bert_checkpoint: Path, tensors: Path, text_csv: Path
) -> None:
    texts = list(read_examples(text_csv, None).inputs)
    arrays = {name: array[::-1] for name, array in np.load(tensors).items() if name != "y"}
    for mine, theirs in (("taylor", "taylor"), (Circuit(ood=(arrays, None)), Circuit(ood=(texts[::-1], None)))):
        options: dict[str, Any] = {"keep": 2, "members": 3 if mine == "taylor" else 1}
        plan = plan_heads(bare, tensors, mine, **options)
        assert plan.members == plan_heads(bert_checkpoint, text_csv, theirs, **options).members


@pytest.mark.usefixtures("undrawn")
def test_calibration_and_evaluation_equal_those_of_the_texts(
    bundle: Path, bert_checkpoint: Path, tensors: Path, text_csv: Path, tmp_path: Path
) -> None:
    page, with_texts = tmp_path / "page.html", tmp_path / "texts"
    own = Path(shutil.copytree(bundle, tmp_path / "bundle"))
    fused = hydrant.fuse(bert_checkpoint, hydrant.Bundle.open(bundle).plan())
    hydrant.save_bundle(fused, with_texts, load_processor(bert_checkpoint, "text"))
    for other in (own, with_texts):
        data = tensors if other == own else text_csv
        fitted = hydrant.calibrate(other, data).calibration
        report = evaluate(other, data, html=page, figures=Figures(bootstrap=0, latency=True), force=True)
        figures = report.models[0].figures
        if other == own:
            expected = fitted.temperature, figures["nll"].value
            assert "input 0" in page.read_text()
    assert (fitted.temperature, figures["nll"].value) == pytest.approx(expected, rel=1e-4)
    assert hydrant.verify(own, "onnxruntime", data=tensors, reading=Reading(examples=10)).passed
    assert export(own, "fp16", data=tensors, reading=Reading(examples=8)).islands is not None


def test_numbers_outside_float32_are_rejected() -> None:
    spec: Any = SimpleNamespace(modality="audio", shortest=2, fixed_shape=(), input_names=("input_values",))
    for value in (1e39, np.nan):
        with pytest.raises(InputError, match="input_values holds NaN or infinity"):
            checked_tensors({"input_values": np.full((1, 5), value)}, spec)


def test_only_padding_at_the_end_is_dropped() -> None:
    processor = TensorProcessor(architecture_of(make_model("bert")))
    ids = np.array([[5, 6, 0, 0], [0, 5, 6, 0], [5, 6, 7, 8]])
    mask = (ids != 0).astype(int)
    rows = [{"input_ids": a, "attention_mask": b} for a, b in zip(ids, mask, strict=True)]
    items = processor.encode(rows)
    assert [item.tokens for item in items] == [2, 3, 4]
    both = processor.collate(items)
    np.testing.assert_array_equal(both["input_ids"], ids)
    np.testing.assert_array_equal(both["attention_mask"], mask)
    np.testing.assert_array_equal(both["token_type_ids"], 0 * ids)
    assert processor.collate(items[:2])["input_ids"].shape == (2, 3)


def test_unusable_tensors_are_rejected(bundle: Path, tmp_path: Path) -> None:
    ids, mask = np.full((6, 4), 5), np.ones((6, 4), int)
    for each, message in ((0 * mask, "input 0: attention_mask"), (mask[:5], r"input_ids.*attention_mask")):
        np.savez(tmp_path / "data.npz", input_ids=ids, attention_mask=each, y=np.zeros(6, int))
        with pytest.raises(InputError, match=message):
            hydrant.calibrate(bundle, tmp_path / "data.npz")


def test_padding_keeps_its_place_above_a_trunk(bare: Path, tmp_path: Path) -> None:
    """Cached activations of a trunk give the same logits, with padding before, between and after tokens."""
    members = tuple(((0, 1, 2, 3), own, own[:1]) for own in ((0, 1), (2, 3)))
    module = hydrant.fuse(bare, HeadPlan("bert", LAYERS, HEADS, members, "random"))
    ids = np.array([[0, 0, 0, 7], [0, 5, 6, 7], [5, 0, 6, 7], [5, 6, 7, 8], [5, 6, 0, 0]])
    np.savez(tmp_path / "x.npz", input_ids=ids, attention_mask=(ids != 0).astype(np.int64), y=np.zeros(5, np.int64))
    examples = read_examples(tmp_path / "x.npz", LABELS)
    source = Source(examples, examples.processor(module.architecture, lambda: None), module.architecture)
    order, device = np.array([4, 0, 3, 1, 2]), torch.device("cpu")
    job = tuning_data.TuningData(
        source, source, Settings(Jointly(), 2, 0, 1), SimpleNamespace(device=device), no_progress
    )
    with tuning_data.activations(job, module) as cached, torch.no_grad():
        above = tuning_data.member_logits(module, tuning_data.on_device(cached.training.batch(order)[0], device), 1)
        whole = tuning_data.member_logits(module, tuning_data.on_device(source.batch(order)[0], device), 0)
    torch.testing.assert_close(above, whole, atol=1e-5, rtol=1e-5)
