"""Helpers of token classification tests: tiny models, sentences of an invented language, and a checkpoint."""

from pathlib import Path
from typing import Any

import numpy as np
import oracle
import torch
import transformers
from support import kind_of, make_tokenizer, named, randomized

TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
TAG_NAMES = named(TAGS)

NAMES, PLACES, OTHERS = ["anna", "bert", "carl"], ["paris", "rome"], ["lives", "in", "is", "the", "and", "."]

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *NAMES, *PLACES, *OTHERS, "##na", "an", "##is", "par", "smith"]


CLASSES = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra", "modernbert")
"""Families with a class for token classification."""


def make_tagger(family: str = "bert", seed: int = 0, **settings: Any) -> torch.nn.Module:
    """A tiny token classifier with random weights large enough for heads to matter."""
    name, usual = kind_of(family)
    kind = getattr(transformers, f"{name}ForTokenClassification")
    own = {"classifier_pooling": "mean"} if family == "modernbert" else {}
    torch.manual_seed(seed)
    model = kind(kind.config_class(**{**usual, **own, **TAG_NAMES, **settings}))
    return randomized(model).eval()


def loss_with_gate(model: Any, layer: int, head: int, gate: float, inputs: dict[str, Any]) -> float:
    """Transformers' loss of a BERT with one head scaled."""

    def scale(_: Any, arguments: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor]:
        states = arguments[0].clone()
        states[..., head * 8 : (head + 1) * 8] *= gate
        return (states,)

    handle = model.get_submodule(oracle.OUTPUT_PROJECTIONS["bert"].format(layer)).register_forward_pre_hook(scale)
    with torch.no_grad():
        loss = float(model(**inputs).loss)
    handle.remove()
    return loss


def make_word_tokenizer(folder: Path) -> Any:
    """A WordPiece tokenizer of :data:`WORDS`."""
    make_tokenizer(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return transformers.BertTokenizer(vocab=str(folder / "vocab.txt"), model_max_length=40)


def first_tokens(tokenizer: Any, words: list[str]) -> tuple[Any, list[int]]:
    """A text's tensors, and the places of every word's first token."""
    inputs = tokenizer(words, is_split_into_words=True, return_tensors="pt")
    owners = inputs.word_ids(0)
    return inputs, [place for place, word in enumerate(owners) if word is not None and word != owners[place - 1]]


def sentences(count: int, seed: int = 0) -> tuple[list[list[str]], list[list[str]]]:
    """Words and tags: names are persons, with or without a family name; two words are mostly places."""
    rng = np.random.default_rng(seed)
    texts, tags = [], []
    for _ in range(count):
        words: list[str] = []
        labels: list[str] = []
        for _ in range(rng.integers(1, 4)):
            kind = rng.integers(0, 4)
            if kind == 0:
                words += [str(rng.choice(NAMES))]
                labels += ["B-PER"]
            elif kind == 1:
                words += [str(rng.choice(NAMES)), "smith"]
                labels += ["B-PER", "I-PER"]
            elif kind == 2:
                words += [str(rng.choice(PLACES))]
                labels += ["B-LOC" if rng.random() < 0.8 else "B-PER"]  # ambiguous at random
            filler = rng.choice(OTHERS, rng.integers(1, 3)).tolist()
            words += filler
            labels += ["O"] * len(filler)
        texts.append(words)
        tags.append(labels)
    return texts, tags


def trained_tagger(folder: Path, seed: int = 0, steps: int = 60) -> Path:
    """A checkpoint with tokenizer, trained on :func:`sentences` with transformers' loss until it makes few errors."""
    tokenizer = make_word_tokenizer(folder / "vocabulary")
    torch.manual_seed(seed)
    config = transformers.BertConfig(**kind_of("bert")[1], **TAG_NAMES)
    model = transformers.BertForTokenClassification(config)
    texts, tags = sentences(256, seed)
    inputs = tokenizer(texts, is_split_into_words=True, padding=True, return_tensors="pt")
    labels = torch.full(inputs["input_ids"].shape, -100)
    for row in range(len(texts)):
        before = None
        for place, word in enumerate(inputs.word_ids(row)):
            if word is not None and word != before:
                labels[row, place] = TAGS.index(tags[row][word])
            before = word
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(steps):
        part = torch.from_numpy(np.random.default_rng(step).integers(0, len(texts), 32))
        optimizer.zero_grad()
        model(**{name: tensor[part] for name, tensor in inputs.items()}, labels=labels[part]).loss.backward()
        optimizer.step()
    model.eval().save_pretrained(folder / "checkpoint")
    tokenizer.save_pretrained(folder / "checkpoint")
    return folder / "checkpoint"
