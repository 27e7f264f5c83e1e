"""Readers that know nothing of hydrant; runs in an environment without it, see ``readers.txt``.

    python hub_readers.py < ask.json > answers.json

Reads a list of objects with ``folder``, ``task`` and ``inputs``; prints for each the logits that each reader gives,
[N, C] or for tokens [N][T, C].
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import optimum.onnxruntime as optimum
import transformers
from PIL import Image
from tokenizers import Tokenizer

MODELS = {
    "text-classification": optimum.ORTModelForSequenceClassification,
    "token-classification": optimum.ORTModelForTokenClassification,
    "image-classification": optimum.ORTModelForImageClassification,
}


def pair_of(item: Any) -> tuple[str, str | None]:
    """Text and second text of an input."""
    return (item, None) if isinstance(item, str) else (item[0], item[1])


def plain_tensors(folder: Path, item: Any, image: bool) -> dict[str, np.ndarray]:
    """Tensors of an input, with the repository's ``tokenizer.json`` or image settings alone."""
    if image:
        settings = json.loads((folder / "preprocessor_config.json").read_text())
        mean, deviation = np.array(settings["image_mean"]), np.array(settings["image_std"])
        scaled = (np.asarray(Image.open(item)) * settings["rescale_factor"] - mean) / deviation
        return {"pixel_values": scaled.astype(np.float32).transpose(2, 0, 1)[None]}
    encoded = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(*pair_of(item))
    names = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}
    return {name: np.array([getattr(encoded, own)]) for name, own in names.items()}


def answers(folder: Path, task: str, inputs: list[Any]) -> dict[str, list[Any]]:
    """Logits of each reader for each input."""
    image = task.startswith("image")
    session = onnxruntime.InferenceSession(folder / "onnx" / "model.onnx")
    needed = {value.name for value in session.get_inputs()}
    part = transformers.AutoImageProcessor if image else transformers.AutoTokenizer
    processor = part.from_pretrained(folder)
    models = {"optimum": MODELS[task], "custom": optimum.ORTModelForCustomTasks}
    opened = {name: model.from_pretrained(folder) for name, model in models.items()}
    found: dict[str, list[Any]] = {"onnxruntime": [], **{name: [] for name in opened}}
    for item in inputs:
        plain = plain_tensors(folder, item, image)
        found["onnxruntime"].append(session.run(["logits"], {name: plain[name] for name in needed})[0])
        tensors = processor(Image.open(item) if image else pair_of(item)[0], return_tensors="np", **second(item))
        for name, model in opened.items():
            found[name].append(np.asarray(model(**tensors)["logits"]))
    return {name: [each[0].tolist() for each in logits] for name, logits in found.items()}


def second(item: Any) -> dict[str, str]:
    """Keyword of the second text of a pair."""
    return {} if isinstance(item, str) else {"text_pair": item[1]}


if __name__ == "__main__":
    print(json.dumps([answers(Path(ask["folder"]), ask["task"], ask["inputs"]) for ask in json.load(sys.stdin)]))
