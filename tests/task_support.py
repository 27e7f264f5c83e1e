"""A tiny checkpoint and data for every task except single-label classification."""

import json
from dataclasses import dataclass
from pathlib import Path

import hydrant
import numpy as np
from hydrant import Reading
from hydrant.models.checkpoint import load_processor
from support import make_model, make_tokenizer, save_checkpoint
from token_support import make_tagger, make_word_tokenizer, sentences

NAMES = ["greeting", "money", "weather"]
FILLERS = ["hello", "world", "transfer", "money", "weather", "today", "what", "is", "the"]
KINDS = ("regression", "relevance", "multi_label", "tokens")
TASKS = {"regression": "score", "relevance": "score", "multi_label": "multi_label", "tokens": "tokens"}


@dataclass(frozen=True)
class Case:
    """A checkpoint, files of labelled and of OOD rows, and their reading options."""

    kind: str
    checkpoint: Path
    train: Path
    validation: Path
    ood: Path
    reading: Reading
    columns: tuple[str, ...] = ()


def make_case(kind: str, folder: Path, train: int = 40, validation: int = 66) -> Case:
    """The tiny checkpoint of a task, with random weights, and its data."""
    checkpoint = _checkpoint(kind, folder / f"tiny-{kind}")
    files = {}
    for seed, (name, count) in enumerate({"train": train, "validation": validation, "ood": 50}.items()):
        files[name] = folder / f"{name}.jsonl"
        rows = _rows(kind, count, seed) if name != "ood" else _strange(kind, count)
        files[name].write_text("\n".join(map(json.dumps, rows)) + "\n")
    pairs = kind == "relevance"
    reading = Reading(text="query", text_pair="document") if pairs else Reading()
    columns = ("--text-column", "query", "--text-pair-column", "document") if pairs else ()
    return Case(kind, checkpoint, files["train"], files["validation"], files["ood"], reading, columns)


def _checkpoint(kind: str, folder: Path) -> Path:
    if kind == "tokens":
        make_tagger().save_pretrained(folder)
        make_word_tokenizer(folder.parent / "words").save_pretrained(folder)
        return folder
    if kind == "multi_label":
        return save_checkpoint(folder, labels=NAMES, problem_type="multi_label_classification")
    make_model("bert", num_labels=1).save_pretrained(folder)
    make_tokenizer(folder.parent / "words").save_pretrained(folder)
    return folder


def make_bundle(case: Case, folder: Path) -> Path:
    """An exported bundle with a random plan."""
    plan = hydrant.plan_heads(case.checkpoint, method="random", members=2, keep=2, fork_from=1)
    hydrant.save_bundle(hydrant.fuse(case.checkpoint, plan), folder, load_processor(case.checkpoint, "text"))
    hydrant.export_onnx(folder)
    return folder


def _rows(kind: str, count: int, seed: int) -> list[dict[str, object]]:
    rng = np.random.default_rng([seed, len(kind)])
    if kind == "tokens":
        return [{"tokens": words, "tags": tags} for words, tags in zip(*sentences(count, seed), strict=True)]
    texts = [" ".join(rng.choice(FILLERS, rng.integers(3, 7))) + f" {'is ' * (i % 3)}the" for i in range(count)]
    if kind == "regression":
        return [{"text": text, "label": len(text) / 10} for text in texts]
    if kind == "relevance":
        queries = [" ".join(rng.choice(FILLERS, 2, replace=False)) for _ in range(count // 3 + 1)]
        pairs = [(queries[i // 3], text) for i, text in enumerate(texts)]
        return [{"query": q, "document": d, "label": int(q.split()[0] in d)} for q, d in pairs]
    words = dict(zip(NAMES, ("hello", "money", "weather"), strict=True))
    return [{"text": text, "label": [name for name in NAMES if words[name] in text]} for text in texts]


def _strange(kind: str, count: int) -> list[dict[str, object]]:
    texts = [" ".join(["[UNK]"] * (1 + i % 7) + [str(i)]) for i in range(count)]
    if kind == "tokens":
        return [{"tokens": text.split()} for text in texts]
    return [{"query": t, "document": t[::-1]} if kind == "relevance" else {"text": t} for t in texts]
