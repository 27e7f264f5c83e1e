"""Examples of use for a model card: hydrant, optimum, transformers.js."""

from __future__ import annotations

from ..bundle.store import PROCESSOR, Bundle

PAIR = "text-ranking"

READERS = {
    "text-classification": ("SequenceClassification", "Tokenizer", "tokenizer", '"a text"'),
    "text-ranking": ("SequenceClassification", "Tokenizer", "tokenizer", '("a question", "a passage")'),
    "token-classification": ("TokenClassification", "Tokenizer", "tokenizer", '"a text"'),
    "image-classification": ("ImageClassification", "ImageProcessor", "image_processor", '"image.png"'),
    "audio-classification": ("AudioClassification", "FeatureExtractor", "feature_extractor", '"sound.wav"'),
}
"""Pipeline → the ends of class names in other libraries, argument of the processor, and an input."""

# Task → arguments of a pipeline; one number must not pass a softmax.
NUMBER, WORDS = ', function_to_apply="none"', ', aggregation_strategy="simple"'
OPTIONS = {"score": NUMBER, "tokens": WORDS, "multi_label": ", top_k=None"}
SPANS = "These average a span's words; hydrant and its thresholds use its least certain word."
SCALED = "transformers.js scales images by another method, so its answers may differ."


def examples(bundle: Bundle, tag: str, repository: str) -> list[str]:
    """Fenced code for each library; other libraries need the processor."""
    model, processor, argument, item = READERS[tag]
    task = bundle.any_architecture().task
    hydrant = f"""import hydrant  # pip install 'hydrant-uq[hub,onnxruntime]'

with hydrant.load("{repository}") as predictor:
    prediction = predictor.predict([{item}])
    print(predictor.rows(prediction))"""
    if not any(name.startswith(f"{PROCESSOR}/") for name in bundle.manifest["files"]):
        tensors = ", ".join(f'"{name}": array' for name in bundle.any_architecture().input_names)
        return ["Inputs are prepared tensors.", _code("python", hydrant.replace(f"[{item}]", f"{{{tensors}}}"))]
    pair = '{"text": "a question", "text_pair": "a passage"}'
    optimum = f"""from optimum.onnxruntime import ORTModelFor{model}  # in an environment of its own: optimum-onnx
from transformers import Auto{processor}, pipeline

model = ORTModelFor{model}.from_pretrained("{repository}")
processor = Auto{processor}.from_pretrained("{repository}")
classify = pipeline("{"text-classification" if tag == PAIR else tag}", model=model, {argument}=processor)
print(classify({pair if tag == PAIR else item}{OPTIONS.get(task, "")}))"""
    script = _script(tag, task, repository, "token_type_ids" in bundle.any_architecture().input_names)
    others = "Other libraries read the answers, without uncertainty and decisions:"
    parts = [_code("python", hydrant), others, _code("python", optimum), *([_code("js", script)] if script else [])]
    return [*parts, *([SCALED] if tag == "image-classification" else []), *([SPANS] if task == "tokens" else [])]


def _script(tag: str, task: str, repository: str, types: bool) -> str:
    """JavaScript for transformers.js, whose pipelines know no pairs and no regression; empty without a short one."""
    model, processor, _, item = READERS[tag]
    if task != "score":
        options = ", { top_k: null }" if task == "multi_label" else ""
        return f"""import {{ pipeline }} from '@huggingface/transformers';

const classify = await pipeline('{tag}', '{repository}');
console.log(await classify({item.replace('"', "'")}{options}));"""
    if processor != "Tokenizer":
        return ""
    second = f", {{ text_pair: 'a passage'{', return_token_type_ids: true' * types} }}"
    call = f"'a question'{second}" if tag == PAIR else "'a text'"
    return f"""import {{ AutoModelFor{model}, AutoTokenizer }} from '@huggingface/transformers';

const model = await AutoModelFor{model}.from_pretrained('{repository}');
const tokenizer = await AutoTokenizer.from_pretrained('{repository}');
const {{ logits }} = await model(tokenizer({call}));
console.log(logits.tolist());"""


def _code(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"
