"""The check of a checkpoint against transformers on raw inputs, when it is fused and when it is verified."""

import json
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import pytest
import torch
import transformers
from hydrant import Bundle, fuse, save_bundle
from hydrant.bundle.original_check import ORIGINAL_CHECK, repeat_preprocessing
from hydrant.data.check_inputs import check_inputs, to_json
from hydrant.data.images import ImageProcessor
from hydrant.data.text import TextProcessor
from hydrant.errors import BundleError, UnsupportedModelError
from support import make_model, make_tokenizer, run_cli, stdout_of
from token_support import make_tagger, make_word_tokenizer
from traced_support import MODELS, build, make


def gpt2(folder: Path, types: bool) -> Path:
    """A GPT-2 with a tokenizer that gives token types, which it looks up in the table of tokens, or gives none."""
    make("gpt2").save_pretrained(folder)
    tokenizer = make_tokenizer(folder / "source")
    tokenizer.model_input_names = ["input_ids", "attention_mask", *(["token_type_ids"] if types else [])]
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, bool]:
    """A folder, and whether it is fused by tracing."""
    name, folder = request.param, tmp_path / "checkpoint"
    if name in ("gpt2", "gpt2-typed"):
        return gpt2(folder, name == "gpt2-typed"), True
    traced = name in MODELS
    model = build(name) if traced else make_tagger() if name == "tagger" else make_model(name)
    model.save_pretrained(folder)
    if name == "wav2vec2":
        transformers.Wav2Vec2FeatureExtractor().save_pretrained(folder)
    elif name in ("vit", "swin"):
        size = model.config.image_size
        transformers.ViTImageProcessorPil(size={"height": size, "width": size}).save_pretrained(folder)
    else:
        made = make_word_tokenizer if name == "tagger" else make_tokenizer
        made(folder / "source").save_pretrained(folder)
    return folder, traced


def by_transformers(folder: Path, item: Any) -> np.ndarray:
    """Probabilities that transformers gives one raw input; of a tagger those of the first token."""
    config = transformers.AutoConfig.from_pretrained(folder)
    model = getattr(transformers, config.architectures[0]).from_pretrained(folder).eval()
    if hasattr(item, "samples"):
        extractor = transformers.AutoFeatureExtractor.from_pretrained(folder)
        given = extractor(item.samples, sampling_rate=item.rate, return_tensors="pt")
    elif hasattr(item, "convert"):
        given = transformers.ViTImageProcessorPil.from_pretrained(folder)(item.convert("RGB"), return_tensors="pt")
    else:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        texts = item if isinstance(item, tuple) else (item,)
        given = tokenizer(*texts, truncation=True, is_split_into_words=isinstance(item, list), return_tensors="pt")
    with torch.no_grad():
        logits = model(**given).logits[0]
    return np.asarray((logits if logits.ndim == 1 else logits[0]).softmax(-1))


NAMES = ("bert", "vit", "tagger", "gpt2", "gpt2-typed", "swin", "wav2vec2")


@pytest.mark.parametrize("checkpoint", NAMES, indirect=True)
def test_the_bundle_answers_raw_inputs_as_transformers(checkpoint: tuple[Path, bool], tmp_path: Path) -> None:
    folder, traced = checkpoint
    stdout_of("fuse", folder, "-o", tmp_path / "b", *(["--traced"] if traced else []))
    bundle = Bundle.open(tmp_path / "b")
    rows = bundle.read_json(ORIGINAL_CHECK)["inputs"]
    items = check_inputs(bundle.any_architecture())
    assert len(rows) >= len(items) - 3  # transformers itself may take no pair, or no empty text
    stored = {json.dumps(row["input"]): row for row in rows}
    with hydrant.load(bundle.path, backend="torch") as predictor:
        for item in items[:3]:
            row = stored[json.dumps(to_json(item))]
            expected = by_transformers(folder, item)
            for index, value in row["probabilities"].items():
                assert value == pytest.approx(expected[int(index)], abs=1e-5)
            if not bundle.any_architecture().every_token:
                given = item.convert("RGB") if hasattr(item, "convert") else item
                np.testing.assert_allclose(predictor.predict([given]).probabilities[0], expected, atol=1e-5)
    assert repeat_preprocessing(bundle, bundle.processor()) == {"inputs": len(rows), "different": []}


def wrong_ids(self: TextProcessor, items: Any, first: int = 0) -> Any:
    """Texts encoded as if there were no special token at the end."""
    encodings = ENCODE(self, items, first)
    return [type(each)(each.ids[:-1], each.types[:-1], each.truncated) for each in encodings]


def brighter(self: ImageProcessor, image: Any, index: int) -> np.ndarray:
    return PIXELS(self, image, index) + np.float32(0.01)


ENCODE, PIXELS = TextProcessor.encode, ImageProcessor._pixels


@pytest.mark.parametrize(
    ("checkpoint", "owner", "name", "fault", "said"),
    [
        ("bert", TextProcessor, "encode", wrong_ids, "input_ids"),
        ("gpt2", TextProcessor, "encode", wrong_ids, "input_ids"),
        ("vit", ImageProcessor, "_pixels", brighter, "pixel_values"),
    ],
    indirect=["checkpoint"],
)
def test_a_fault_of_hydrant_is_refused(
    checkpoint: tuple[Path, bool], owner: type, name: str, fault: Any, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, traced = checkpoint
    monkeypatch.setattr(owner, name, fault)
    processor = transformers.AutoTokenizer if owner is TextProcessor else transformers.ViTImageProcessorPil
    with pytest.raises(UnsupportedModelError, match=said):
        save_bundle(fuse(str(folder), traced=traced), folder / "b", processor.from_pretrained(folder))
    assert not (folder / "b").exists()


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint", ["bert"], indirect=True)
def test_verify_repeats_the_preprocessing(checkpoint: tuple[Path, bool], tmp_path: Path) -> None:
    folder, _ = checkpoint
    assert run_cli("fuse", folder, "-o", tmp_path / "b").returncode == 0
    assert run_cli("export", tmp_path / "b").returncode == 0
    done = stdout_of("verify", tmp_path / "b", "--json")
    assert json.loads(done)["preprocessing"]["different"] == []
    bundle = Bundle.open(tmp_path / "b")
    steps = json.loads(bundle.read("processor/tokenizer.json"))
    steps["normalizer"]["lowercase"] = False  # as a library of another version might
    bundle = bundle.add({"processor/tokenizer.json": json.dumps(steps).encode()})
    done = run_cli("verify", tmp_path / "b", "--json")
    assert done.returncode == 1
    assert any("input_ids" in line for line in json.loads(done.stdout)["preprocessing"]["different"])
    bundle = bundle.add({ORIGINAL_CHECK: b"{}\n"})
    with pytest.raises(BundleError, match=ORIGINAL_CHECK):
        repeat_preprocessing(bundle, bundle.processor())
