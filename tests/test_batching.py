"""Batching by length: inputs are prepared once, and few prepared images are in memory."""

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import pytest
from hydrant import Circuit, HeadPlan, Reading, fuse, plan_heads, save_bundle
from hydrant.data import batching
from hydrant.data.examples import Examples
from hydrant.data.images import ImageProcessor
from hydrant.data.processor import load_processor
from hydrant.data.text import TextProcessor
from hydrant.models.checkpoint import load_model
from hydrant.models.checkpoint import load_processor as checkpoint_processor
from hydrant.models.family_registry import architecture_of
from hydrant.tuning.tuning_data import Source
from support import CLASSES

BATCH = 4
IMAGES = list(np.random.default_rng(0).integers(0, 256, (40, 20, 16, 3), dtype=np.uint8))
LABELS = [index % CLASSES for index in range(len(IMAGES))]


class Watch:
    """Counts preparations of each input, and prepared images in memory."""

    def __init__(self) -> None:
        self.times: Counter[int] = Counter()
        self.most = 0
        self._alive: list[weakref.ref[Any]] = []

    def note(self, items: Sequence[Any], encoded: Sequence[Any]) -> None:
        self.times.update(map(id, items))
        self._alive = [each for each in [*self._alive, *map(weakref.ref, encoded)] if each() is not None]
        self.most = max(self.most, len(self._alive))


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    watching = Watch()

    def watched(encode: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        def call(self: Any, items: Sequence[Any], first: int = 0) -> list[Any]:
            encoded = encode(self, items, first)
            watching.note(items, encoded)
            return encoded

        return call

    for kind in (ImageProcessor, TextProcessor):
        monkeypatch.setattr(kind, "encode", watched(kind.encode))
    return watching


@pytest.fixture(scope="module")
def image_bundle(vit_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("image") / "bundle"
    save_bundle(fuse(vit_checkpoint), path, checkpoint_processor(vit_checkpoint, "image"))
    return path


def plan(checkpoint: Path, data: Any = (IMAGES, LABELS), **options: Any) -> HeadPlan:
    return plan_heads(checkpoint, data, members=2, reading=Reading(batch_size=BATCH), **{"keep": 2, **options})


def predicted(bundle: Path) -> None:
    with hydrant.load(bundle, "torch") as predictor:
        assert len(predictor.predict(IMAGES, batch_size=BATCH)) == len(IMAGES)


USES: dict[str, Callable[[Path, Path], Any]] = {
    "taylor": lambda checkpoint, _: plan(checkpoint),
    "circuit": lambda checkpoint, _: plan(checkpoint, (IMAGES[:30], LABELS[:30]),
                                          method=Circuit(ood=(IMAGES[30:], None))),
    "predict": lambda _, bundle: predicted(bundle),
    "calibrate": lambda _, bundle: hydrant.calibrate(bundle, (IMAGES, LABELS), reading=Reading(batch_size=BATCH)),
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_every_image_is_prepared_once_with_one_batch_in_memory(
    use: str, vit_checkpoint: Path, image_bundle: Path, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "MEMORY_BYTES", 0)
    USES[use](vit_checkpoint, image_bundle)
    assert [watch.times[id(image)] for image in IMAGES] == [1] * len(IMAGES)
    assert watch.most <= BATCH


def test_texts_to_tune_on_are_tokenised_once(bert_checkpoint: Path, watch: Watch) -> None:
    spec = architecture_of(load_model(bert_checkpoint))
    texts = ["hello", "transfer money today", "what is the weather", "the world"]
    source = Source(Examples(texts, np.arange(4), "texts"), load_processor(bert_checkpoint, spec), spec)
    for _ in range(3):
        tensors, labels = source.batch(np.array([2, 0]))
        assert tensors["attention_mask"].sum(axis=1).tolist() == [6, 3]
        assert labels.tolist() == [2, 0]
    assert [watch.times[id(text)] for text in texts] == [1] * 4
