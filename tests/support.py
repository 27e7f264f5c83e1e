"""Test helpers: tiny random models of every family, inputs, plans, and the command line."""

import io
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import command
import hydrant
import numpy as np
import onnx
import torch
import transformers
from hydrant import Bundle, HeadPlan, Prediction, load, load_zero_shot
from hydrant.data.examples import Examples
from PIL import Image

os.environ.setdefault("HF_HUB_OFFLINE", "1")

FAMILIES = ("bert", "roberta", "distilbert", "electra", "vit", "deit", "clip", "clip-classifier", "dinov2")
TEXT_FAMILIES, IMAGE_FAMILIES = FAMILIES[:4], FAMILIES[4:]
ALIASES = ("xlm-roberta", "camembert")  # other names of RoBERTa: test_families.py
ROBERTAS = ("roberta", *ALIASES)
ALL_FAMILIES = (*FAMILIES, *ALIASES, "modernbert", "dinov2_with_registers", "siglip")
PROMPTS = ("a cat", "a photo of a dog", "the moon", "a house by the sea", "2 trees")
LAYERS, HEADS, CLASSES, VOCABULARY = 3, 4, 5, 99

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS += ["hello", "world", "transfer", "money", "weather", "today", "what", "is", "the"]


def make_model(family: str, seed: int = 0, **settings: Any) -> torch.nn.Module:
    """A tiny classifier of a family, with random weights large enough for heads to matter.

    CLIP's has one prompt for each class; ``dual_encoder`` is its source model, and ``prompt_tokens`` the tokenized
    prompts.
    """
    torch.manual_seed(seed)
    model = randomized(make_dual_encoder(**settings) if family == "clip" else _plain_model(family, settings))
    if family == "clip-classifier":  # no LayerNorm before it
        model.classifier.weight.data.mul_(0.1)
    return zero_shot(model.eval(), list(PROMPTS)) if family == "clip" else model.eval()


def randomized(model: Any) -> Any:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = "norm" in name.lower() and name.endswith("weight")
            parameter.normal_(1.0 if is_norm else 0.0, 0.3)
    return model


def kind_of(family: str) -> tuple[str, dict[str, Any]]:
    """Name of a family's classes, and a tiny configuration."""
    text = {"vocab_size": VOCABULARY, "max_position_embeddings": 40, "num_labels": CLASSES}
    shape = {"hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 48}
    image = {"image_size": 12, "patch_size": 4, "num_labels": CLASSES}
    roberta = {**text, **shape, "type_vocab_size": 1, "pad_token_id": 1}
    scaled = {**{name: size for name, size in shape.items() if name != "intermediate_size"}, **image, "mlp_ratio": 2}
    special = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
    slim = {"dim": 32, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": 48}
    kinds: dict[str, tuple[str, dict[str, Any]]] = {
        "bert": ("Bert", {**text, **shape}),
        "roberta": ("Roberta", roberta),
        "xlm-roberta": ("XLMRoberta", roberta),
        "camembert": ("Camembert", roberta),
        "electra": ("Electra", {**text, **shape, "embedding_size": 20}),
        "distilbert": ("DistilBert", {**text, **slim}),
        "modernbert": ("ModernBert", {**text, **shape, "local_attention": 4, **special}),
        "vit": ("ViT", {**shape, **image}),
        "deit": ("DeiT", {**shape, **image}),
        "dinov2": ("Dinov2", scaled),
        "dinov2_with_registers": ("Dinov2WithRegisters", {**scaled, "num_register_tokens": 3}),
        "clip-classifier": ("CLIP", {**shape, "image_size": 12, "patch_size": 4}),
        "siglip": ("Siglip", {**shape, "image_size": 12, "patch_size": 4}),
    }
    return kinds[family]


def _plain_model(family: str, settings: dict[str, Any]) -> Any:
    name, usual = kind_of(family)
    options = {**usual, **settings}
    if family in ("clip-classifier", "siglip"):
        options = {"vision_config": options, "num_labels": CLASSES}
    reads = "Sequence" if "vocab_size" in usual else "Image"
    config = getattr(transformers, f"{name}Config")(**options)
    return getattr(transformers, f"{name}For{reads}Classification")(config)


def model_type(family: str) -> str:
    """Name of a family in plans and bundles: transformers' ``model_type``."""
    return "clip" if family == "clip-classifier" else family


def make_dual_encoder(**settings: Any) -> torch.nn.Module:
    """A tiny ``CLIPModel``; ``settings`` are for its image tower."""
    shape = {"hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 48}
    text = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40}
    tokens = {"vocab_size": 90, "max_position_embeddings": 77, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    image = {**shape, "image_size": 12, "patch_size": 4, **settings}
    return transformers.CLIPModel(
        transformers.CLIPConfig(text_config={**text, **tokens}, vision_config=image, projection_dim=20)
    )


def zero_shot(model: Any, texts: Sequence[str], names: Sequence[str] = "abcde") -> Any:
    """A zero-shot classifier with one prompt for each class, which keeps its source model."""
    tokenizer = make_clip_tokenizer()
    classifier = load_zero_shot(model, dict(zip(names, texts, strict=True)), tokenizer=tokenizer)
    tokens = tokenizer(list(texts), padding=True, return_tensors="pt")
    classifier.__dict__.update(
        dual_encoder=model, prompt_tokens=dict(tokens)
    )  # not submodules: the weights stay the same
    return classifier


def make_clip_tokenizer() -> Any:
    """CLIP's tokenizer with a vocabulary of letters."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,"
    words = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{letter}</w>" for letter in letters)]
    vocabulary = {word: index for index, word in enumerate(words)}
    return transformers.CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=77)


def random_plan(family: str, members: int, seed: int = 0, fork: int = 0) -> HeadPlan:
    """A plan with unequal head counts between members and layers; all heads below the fork."""
    rng = np.random.default_rng(seed)
    keep = tuple(
        tuple(
            tuple(range(HEADS))
            if layer < fork
            else tuple(sorted(rng.choice(HEADS, rng.integers(1, HEADS + 1), replace=False).tolist()))
            for layer in range(LAYERS)
        )
        for _ in range(members)
    )
    return HeadPlan(model_type(family), LAYERS, HEADS, keep, "random")


def make_inputs(family: str, batch: int = 4, seed: int = 0, padded: bool = True) -> dict[str, torch.Tensor]:
    """Inputs of a tiny model; text with rows of different lengths when padded."""
    rng = np.random.default_rng(seed)
    if family in (*IMAGE_FAMILIES, "dinov2_with_registers", "siglip"):
        return {"pixel_values": torch.from_numpy(rng.standard_normal((batch, 3, 12, 12)).astype(np.float32))}
    tokens = 9
    ids = torch.from_numpy(rng.integers(5, VOCABULARY, (batch, tokens)))
    mask = torch.ones_like(ids)
    if padded:
        for row, length in enumerate(rng.integers(2, tokens + 1, batch)):
            mask[row, length:] = 0
        mask[0] = 1
        ids[mask == 0] = 1 if family in ROBERTAS else 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    if family in ("bert", "electra"):
        inputs["token_type_ids"] = torch.from_numpy(rng.integers(0, 2, (batch, tokens))) * mask
    return inputs


def feeds(family: str, batch: int = 4, **options: Any) -> dict[str, np.ndarray]:
    """The same as arrays."""
    return {name: tensor.numpy() for name, tensor in make_inputs(family, batch, **options).items()}


class Item:
    """One ready-made example: unpadded tensors without a batch axis."""

    truncated = False

    def __init__(self, tensors: dict[str, np.ndarray]) -> None:
        self.tensors = tensors

    @property
    def tokens(self) -> int:
        return len(next(iter(self.tensors.values())))


class ReadyTensors:
    """A processor whose inputs are ready; batches are padded on the right."""

    def __init__(self, padding: int) -> None:
        self.padding = padding
        self.shapes: list[tuple[int, ...]] = []

    def encode(self, items: Sequence[Item], first: int = 0) -> list[Item]:
        return list(items)

    def collate(self, items: Sequence[Item]) -> dict[str, np.ndarray]:
        longest = max(item.tokens for item in items)
        batch = {}
        for name in items[0].tensors:
            fill = self.padding if name == "input_ids" else 0
            rows = [item.tensors[name] for item in items]
            pads = [[(0, longest - len(row)), *[(0, 0)] * (row.ndim - 1)] for row in rows]
            batch[name] = np.stack(
                [np.pad(row, pad, constant_values=fill) for row, pad in zip(rows, pads, strict=True)]
            )
        self.shapes.append(next(iter(batch.values())).shape)
        return batch

    def describe(self) -> dict[str, Any]:
        return {}


def examples_of(family: str, count: int) -> Examples:
    """Ready-made examples of a tiny model, texts unpadded, with random labels."""
    inputs = feeds(family, batch=count, seed=3)
    items = []
    for row in range(count):
        length = inputs["attention_mask"][row].sum() if "attention_mask" in inputs else None
        items.append(Item({name: array[row][:length] for name, array in inputs.items()}))
    labels = np.random.default_rng(5).integers(0, CLASSES, count)
    return Examples(items, labels, "test")


def make_tokenizer(folder: Path) -> Any:
    """A small WordPiece tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    return transformers.BertTokenizer(vocab=str(folder / "vocab.txt"), model_max_length=40)


def named(labels: Sequence[str]) -> dict[str, Any]:
    """Settings of a model with these labels."""
    return {"id2label": dict(enumerate(labels)), "label2id": {name: index for index, name in enumerate(labels)}}


def save_checkpoint(folder: Path, seed: int = 0, labels: Sequence[str] = "abcde", **settings: Any) -> Path:
    """A tiny BERT with tokenizer, saved as a Hugging Face folder."""
    make_model("bert", seed, **{"num_labels": len(labels), **named(labels), **settings}).save_pretrained(folder)
    make_tokenizer(folder / "source").save_pretrained(folder)
    return folder


OLDEST = tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 13)
"""True for the oldest supported transformers (5.12), in which some test data differ."""


def for_this_version(program: str) -> str:
    """Adapt a program to the oldest transformers, whose ``AutoImageProcessor`` needs torchvision."""
    line = "from transformers import AutoImageProcessor"
    older = "from transformers.models.auto.image_processing_auto import AutoImageProcessor"
    return program.replace(line, older) if OLDEST else program


def run_cli(
    *arguments: object, timeout: float = 300, cwd: str | Path = "/", given: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run the command line in another process outside the checkout."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": "120"}
    return command.run([str(word) for word in arguments], environment, cwd, given, timeout)


def stdout_of(*arguments: object, **options: Any) -> str:
    """Standard output of a command that must succeed."""
    done = run_cli(*arguments, **options)
    assert done.returncode == 0, f"{arguments}: {done.stderr}"
    return done.stdout


def predicted(bundle: Any, inputs: Any, *loading: Any, **options: Any) -> Prediction:
    """Prediction of a predictor that is loaded for it."""
    with load(bundle, *loading, **options) as predictor:
        return predictor.predict(inputs)


def fresh_python(code: str, *arguments: object, cwd: Path | str = "/") -> subprocess.CompletedProcess[str]:
    """Run code in a new Python, which has imported nothing."""
    words = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=cwd, timeout=120)


def relabel(bundle: Path, target: str = "model.fp32.onnx", **metadata: str) -> None:
    """Put a bundle's graph with other metadata into it, as ``target``."""
    model = onnx.load(bundle / "model.fp32.onnx")
    facts = {entry.key: entry.value for entry in model.metadata_props}
    onnx.helper.set_model_props(model, facts | {f"hydrant.{name}": value for name, value in metadata.items()})
    Bundle.open(bundle).add({target: model.SerializeToString()})


def many_scans(more: int) -> bytes:
    """A progressive JPEG file whose last scan is repeated ``more`` times."""
    whole = io.BytesIO()
    Image.new("L", (24, 24), 128).save(whole, "JPEG", progressive=True)
    before, _, last = whole.getvalue()[:-2].rpartition(b"\xff\xda")
    return before + (b"\xff\xda" + last) * (1 + more) + b"\xff\xd9"


def run_python(
    program: str, *arguments: object, timeout: float = 600, cwd: str | Path = "/", given: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run a program from the docs in another process with heavy imports done; it may use only public names."""
    assert set(re.findall(r"(?<!from )\bhydrant\.(\w+)", program)) <= set(hydrant.__all__), program
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    return command.run([str(word) for word in arguments], environment, cwd, given, timeout, program)
