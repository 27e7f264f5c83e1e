"""Writes golden bundles: every task, declared and traced, and work that was interrupted.

    python tests/write_bundles.py FOLDER

``tests/bundles_0_2_0`` is what 0.2.0 wrote into FOLDER: the bundles, ``expected.json`` (inputs, and what PyTorch
predicted), ``texts.jsonl`` with ``parts/`` of its prediction, and ``maker.pub``, the key that checks the signed bundle.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import hydrant
import numpy as np
import torch
import transformers
from cryptography.hazmat.primitives.asymmetric import ec
from hydrant import Bundle, Prediction
from hydrant.bundle import staging
from hydrant.bundle.strict_json import to_json_bytes
from hydrant.engines.metadata import EngineFile, engine_path, graph_digest, metadata_path
from hydrant.runtime.offline.chunks import Chunks
from support import make_model, make_tokenizer
from task_support import FILLERS, NAMES
from test_signature import write_key
from token_support import TAGS, make_tagger, make_word_tokenizer, sentences
from traced_support import TEXT

TASKS = ("classification", "score", "multi_label", "tokens")
SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 12}
SIZES = {**SHAPE, "max_position_embeddings": 24, "vocab_size": 24}
ROWS, CHUNK = 6, 4


def main(folder: Path) -> None:
    folder.mkdir(parents=True)
    expected = {}
    with tempfile.TemporaryDirectory() as name:
        for task in TASKS:
            for kind in ("declared", "traced"):
                bundle = write_bundle(folder / f"{kind}-{task}", task, kind == "traced", Path(name))
                inputs = texts_of(task, ROWS, seed=9)
                expected[bundle.path.name] = {"inputs": inputs, **predictions(bundle, inputs)}
        add_engine(folder / "declared-score")
        expected["signed-image"] = write_signed(folder, Path(name))
    write_interrupted(folder, "finished", forward=True)
    write_interrupted(folder, "undone", forward=False)
    write_parts(folder)
    (folder / "expected.json").write_text(
        "{\n" + ",\n".join(f'"{k}": {json.dumps(v)}' for k, v in expected.items()) + "\n}\n"
    )


def write_bundle(path: Path, task: str, is_traced: bool, scratch: Path) -> Bundle:
    """A bundle made as a user makes one: planned, fused, exported and calibrated on files."""
    checkpoint, data = scratch / f"{path.name}-model", {}
    model = traced(task) if is_traced else declared(task)
    model.save_pretrained(checkpoint)
    tokenizer = (make_word_tokenizer if task == "tokens" else make_tokenizer)(scratch / "words")
    tokenizer.save_pretrained(checkpoint)
    for seed, name in enumerate(("train", "validation", "ood")):
        data[name] = scratch / f"{name}.jsonl"
        rows = rows_of(task, model, tokenizer, texts_of(task, 70, seed))
        data[name].write_text("".join(json.dumps(row) + "\n" for row in rows))
    plan = hydrant.plan_heads(
        checkpoint, data["train"], members=2, keep=[2], fork_from=0 if is_traced else 1, traced=is_traced
    )
    bundle = hydrant.save_bundle(hydrant.fuse(checkpoint, plan, traced=is_traced), path, tokenizer)
    hydrant.export_onnx(bundle)
    sets = hydrant.Conformal(0.2) if task == "classification" else None
    options = {"fit": data["train"]} if task in ("classification", "tokens") else {}
    hydrant.calibrate(bundle, data["validation"], data["ood"], abstain=hydrant.Coverage(0.8), sets=sets, **options)
    if path.name == "declared-classification":
        hydrant.export_onnx(bundle, "int8", data=data["train"])
        hydrant.verify(bundle, "onnxruntime", data=data["train"])
    return Bundle.open(path)


def declared(task: str) -> Any:
    if task == "tokens":
        return make_tagger(**SIZES)
    labels = {"num_labels": 1} if task == "score" else names(NAMES)
    return make_model("bert", **SIZES, **labels, **problem(task))


def traced(task: str) -> Any:
    """MPNet, which no family declares; its biases and tables are not 0."""
    labels = {"num_labels": 1} if task == "score" else names(TAGS if task == "tokens" else NAMES)
    config = transformers.MPNetConfig(**{**TEXT, **SIZES, "num_hidden_layers": 1, **labels, **problem(task)})
    kind = transformers.MPNetForTokenClassification if task == "tokens" else transformers.MPNetForSequenceClassification
    torch.manual_seed(1)
    model = kind(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.7)
    return model.eval()


def names(labels: list[str]) -> dict[str, Any]:
    return {
        "num_labels": len(labels),
        "id2label": dict(enumerate(labels)),
        "label2id": {name: place for place, name in enumerate(labels)},
    }


def problem(task: str) -> dict[str, str]:
    return {"problem_type": "multi_label_classification"} if task == "multi_label" else {}


def texts_of(task: str, count: int, seed: int) -> list[Any]:
    """Texts, or the words of texts for models that tag tokens."""
    if task == "tokens":
        return sentences(count, seed)[0]
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(FILLERS, draw.integers(2, 7))) for _ in range(count)]


def rows_of(task: str, model: Any, tokenizer: Any, texts: list[Any]) -> list[dict[str, Any]]:
    """Rows labelled by what the model favours more than usual, but for every sixth: something to calibrate."""
    inputs = tokenizer(texts, is_split_into_words=task == "tokens", padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = model(inputs["input_ids"], inputs["attention_mask"]).logits
    logits -= 0.0 if task == "score" else 0.7 * logits.mean(dim=tuple(range(logits.ndim - 1)))
    logits[5::6] = logits[5::6].flip(-1)
    if task == "score":
        return [
            {"text": text, "label": round(value, 3)} for text, value in zip(texts, logits[:, 0].tolist(), strict=True)
        ]
    if task == "multi_label":
        chosen = [[NAMES[place] for place in np.flatnonzero(row > 0)] for row in logits.numpy()]
        return [{"text": text, "label": labels} for text, labels in zip(texts, chosen, strict=True)]
    best = logits.argmax(-1)
    if task == "classification":
        return [{"text": text, "label": NAMES[label]} for text, label in zip(texts, best.tolist(), strict=True)]
    firsts = [[inputs.word_to_tokens(row, word).start for word in range(len(words))] for row, words in enumerate(texts)]
    return [
        {"tokens": words, "tags": [TAGS[int(best[row, token])] for token in firsts[row]]}
        for row, words in enumerate(texts)
    ]


def predictions(bundle: Bundle, inputs: Any) -> dict[str, Any]:
    """Rows and every field of PyTorch's prediction, and the fields of the INT8 graph's where there is one."""
    with hydrant.load(bundle, "torch") as predictor:
        prediction = predictor.predict(inputs)
        found = {"rows": predictor.rows(prediction, probabilities=True), "fp32": fields(prediction)}
    if bundle.has("model.int8.onnx"):
        with hydrant.load(bundle, "onnxruntime", precision="int8") as predictor:
            found["int8"] = fields(predictor.predict(inputs))
    return rounded(found)


def fields(prediction: Prediction) -> dict[str, Any]:
    return {name: array.tolist() for name, array in prediction.to_dict().items()}


def rounded(value: Any) -> Any:
    """JSON data with seven decimals, which is what float32 holds."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return round(value, 7) if isinstance(value, float) else value


def add_engine(path: Path) -> None:
    """The facts about an engine, beside bytes that stand for one."""
    bundle, content, shapes = Bundle.open(path), b"an engine\n", {"input_ids": ((1, 1), (1, 8), (8, 24))}
    facts = EngineFile(
        "tensorrt-rtx", "1.7.0.3", "fp32", (shapes,), ("8.9",), "linux-x86_64", "model.fp32.onnx",
        graph_digest(bundle, "model.fp32.onnx") or "", "0" * 64, attention_blocks=2, fused=(2,), layers=(31,),
    )  # fmt: skip
    bundle.add({engine_path("small"): content, metadata_path("small"): to_json_bytes(facts.to_json())})


def write_signed(folder: Path, scratch: Path) -> dict[str, Any]:
    """A signed bundle of images that was never calibrated."""
    path, processor = folder / "signed-image", transformers.ViTImageProcessorPil(size={"height": 12, "width": 12})
    model = make_model("vit", **SHAPE, image_size=12, patch_size=6, num_labels=3)
    plan = hydrant.plan_heads(model, method="random", members=2, keep=[2], fork_from=1)
    bundle = hydrant.save_bundle(hydrant.fuse(model, plan), path, processor)
    hydrant.export_onnx(bundle)
    write_key(scratch / "maker.pem", ec.generate_private_key(ec.SECP256R1())).replace(folder / "maker.pub")
    hydrant.sign(path, scratch / "maker.pem")
    images = np.random.default_rng(0).integers(0, 256, (2, 12, 12, 3), np.uint8)
    return {"inputs": images.tolist(), **predictions(Bundle.open(path), list(images))}


def write_interrupted(folder: Path, name: str, forward: bool) -> None:
    """A bundle whose writer was killed after the first of three files had its place, or on the way back from there."""
    model = make_model("bert", **SIZES, num_labels=2)
    plan = hydrant.plan_heads(model, method="random", members=2, keep=[1])
    bundle = hydrant.save_bundle(hydrant.fuse(model, plan), folder / name, tensors_only=True)
    if (child := os.fork()) == 0:
        replace, calls = Path.replace, []

        def cut_off(self: Path, target: Path) -> Path:
            if staging.NEW in self.parts and (calls.append(target) or len(calls) > 1):
                if forward:
                    os._exit(0)
                raise OSError("a full disk")
            return replace(self, target)

        stop = mock.patch.object(staging, "_back", lambda *_: os._exit(0))
        with contextlib.suppress(BaseException), mock.patch.object(Path, "replace", cut_off), stop:
            changed = {**bundle.calibration(), "temperature": 2.0}
            bundle.add({"reports/note.txt": b"new\n", "calibration.json": to_json_bytes(changed)})
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def write_parts(folder: Path) -> None:
    """Two parts of three of a prediction, and the chunks of the third, whose run was cut off after the first one."""
    data, parts = folder / "texts.jsonl", folder / "parts"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts_of("classification", 24, seed=8)))
    parts.mkdir()
    os.chdir(folder)
    with hydrant.load("declared-classification", "torch") as predictor:
        for number in (1, 2, 3):
            stop = (
                mock.patch.object(Chunks, "write", written_once(Chunks.write))
                if number == 3
                else contextlib.nullcontext()
            )
            with stop, contextlib.suppress(KeyboardInterrupt):
                hydrant.predict_files(predictor, data.name, f"parts/{number}.jsonl", shard=f"{number}/3", chunk=CHUNK)


def written_once(write: Callable[..., None]) -> Callable[..., None]:
    def run(chunks: Chunks, number: int, windows: Any) -> None:
        if number:
            raise KeyboardInterrupt
        write(chunks, number, windows)

    return run


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
