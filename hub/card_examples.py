"""Examples of use for a model card: hydrant, optimum, transformers.js."""

from __future__ import annotations

from typing import NamedTuple

from ..bundle.store import PROCESSOR, Bundle


class Reader(NamedTuple):
    """Names in other libraries for one pipeline: optimum's class, the processor's class and argument; an input."""

    model: str
    processor: str
    argument: str
    item: str


TEXT = ("AutoTokenizer", "tokenizer")

READERS = {
    "text-classification": Reader("ORTModelForSequenceClassification", *TEXT, '"a text"'),
    "text-ranking": Reader("ORTModelForSequenceClassification", *TEXT, '("a question", "a passage")'),
    "token-classification": Reader("ORTModelForTokenClassification", *TEXT, '"a text"'),
    "image-classification": Reader(
        "ORTModelForImageClassification", "AutoImageProcessor", "image_processor", '"image.png"'
    ),
    "audio-classification": Reader(
        "ORTModelForAudioClassification", "AutoFeatureExtractor", "feature_extractor", '"sound.wav"'
    ),
}


def examples(bundle: Bundle, tag: str, repository: str) -> list[str]:
    """Fenced code for each library; other libraries need the processor."""
    reader = READERS[tag]
    hydrant = f"""import hydrant  # pip install 'hydrant-uq[hub,onnxruntime]'

with hydrant.load("{repository}") as predictor:
    prediction = predictor.predict([{reader.item}])
    print(predictor.rows(prediction))"""
    if not any(name.startswith(f"{PROCESSOR}/") for name in bundle.manifest["files"]):
        tensors = ", ".join(f'"{name}": array' for name in bundle.any_architecture().input_names)
        code = hydrant.replace(f"[{reader.item}]", f"{{{tensors}}}")
        return ["Inputs are prepared tensors.", _code("python", code)]
    plain = "text-classification" if tag == "text-ranking" else tag
    item = '{"text": "a question", "text_pair": "a passage"}' if tag == "text-ranking" else reader.item
    optimum = f"""from optimum.onnxruntime import {reader.model}  # pip install 'optimum-onnx[onnxruntime]'
from transformers import {reader.processor}, pipeline

model = {reader.model}.from_pretrained("{repository}")
processor = {reader.processor}.from_pretrained("{repository}")
classify = pipeline("{plain}", model=model, {reader.argument}=processor)
print(classify({item}))"""
    script = f"""import {{ pipeline }} from '@huggingface/transformers';

const classify = await pipeline('{plain}', '{repository}');
console.log(await classify({reader.item.replace('"', "'")}));"""
    return [
        _code("python", hydrant),
        "Other libraries read the ensemble's probabilities, without the uncertainty:",
        _code("python", optimum),
        _code("js", script),
    ]


def _code(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"
