"""Differences between families: RoBERTa by other names, narrow tables, the mean of all patches; rejected models."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import torch
import transformers
from hydrant import HeadPlan, export_onnx, fuse, load, plan_heads, save_bundle
from hydrant.errors import HydrantError, UnsupportedModelError
from hydrant.models.checkpoint import check_supported, load_model, load_processor
from hydrant.models.family_registry import DECLARED, LAYOUTS, architecture_of
from hydrant.models.refusals import unsupported
from PIL import Image
from support import ALIASES, TEXT_FAMILIES, fresh_python, make_inputs, make_model, named, random_plan
from test_parity import assert_parity
from token_support import make_tagger
from torch.nn.utils import prune

LETTERS = "abcdefghijklmnopqrstuvwxyzéçà0123456789.,!?"
TEXTS = ["hello world", "héllo, ça va?", "  the weather \n today ", "世界 hello", "money " * 60, "a"]


def make_unigram(family: str) -> Any:
    """The SentencePiece tokenizer of XLM-RoBERTa or CamemBERT with a small vocabulary."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    if family == "camembert":
        special += ["<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"]
    pieces = ["▁", *LETTERS, "▁the", "▁hello", "▁money", "▁weather", "el", "or", "▁w", "<mask>"]
    vocabulary = [(word, 0.0) for word in special] + [(piece, -1.0 - len(piece) / 10) for piece in pieces]
    kind = transformers.XLMRobertaTokenizer if family == "xlm-roberta" else transformers.CamembertTokenizer
    return kind(vocab=vocabulary, model_max_length=38)


@pytest.fixture(scope="module", params=ALIASES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny RoBERTa by another name, with its tokenizer, as a Hugging Face folder."""
    folder = tmp_path_factory.mktemp("alias") / request.param
    make_model(request.param, **named("abcde")).save_pretrained(folder)
    make_unigram(request.param).save_pretrained(folder)
    return folder


def test_texts_are_predicted_as_the_original_models_would(checkpoint: Path, tmp_path: Path) -> None:
    model, tokenizer = load_model(checkpoint), transformers.AutoTokenizer.from_pretrained(checkpoint)
    plan = plan_heads(checkpoint, (TEXTS, list("abcdea")), members=2, keep=2)
    assert plan.family == checkpoint.name
    save_bundle(fuse(checkpoint, plan), tmp_path / "out", load_processor(checkpoint, "text"))
    export_onnx(tmp_path / "out")
    inputs = dict(tokenizer(TEXTS, padding=True, truncation=True, return_tensors="pt"))
    inputs.pop("token_type_ids", None)
    expected = oracle.ensemble([model], plan, inputs)
    for backend in ("torch", "onnxruntime"):
        with load(tmp_path / "out", backend) as predictor:
            np.testing.assert_allclose(predictor.predict(TEXTS).probabilities, expected["probabilities"], atol=1e-5)


@pytest.mark.parametrize("family", ["dinov2", "dinov2_with_registers"])
def test_positions_are_resized_to_the_processor_s_image_size(family: str, tmp_path: Path) -> None:
    """The original interpolates them for every image."""
    original = make_model(family, image_size=20)
    original.save_pretrained(tmp_path / "checkpoint")
    sizes = {"size": {"shortest_edge": 14}, "crop_size": {"height": 12, "width": 12}}
    transformers.BitImageProcessorPil(**sizes).save_pretrained(tmp_path / "checkpoint")
    ensemble = fuse(tmp_path / "checkpoint", random_plan(family, 2))
    assert ensemble.architecture.image_height == ensemble.architecture.image_width == 12
    assert_parity([original], ensemble, make_inputs(family), tmp_path / "bundle")
    processor = load_processor(tmp_path / "checkpoint", "image")
    save_bundle(ensemble, tmp_path / "out", processor)
    export_onnx(tmp_path / "out")
    picture = np.random.default_rng(0).integers(0, 256, (17, 15, 3)).astype(np.uint8)
    pixels = processor(Image.fromarray(picture), return_tensors="pt")["pixel_values"]
    expected = oracle.ensemble([original], ensemble.plan, {"pixel_values": pixels})["probabilities"]
    with load(tmp_path / "out", "onnxruntime") as predictor:
        np.testing.assert_allclose(predictor.predict([picture]).probabilities, expected, atol=1e-4)


DROPS = {"classifier_dropout": 0.3, "hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.0}
SLIM_DROPS = {"dropout": 0.2, "attention_dropout": 0.0, "seq_classif_dropout": 0.3}


DROPPING = [*TEXT_FAMILIES, *ALIASES, "modernbert"]


@pytest.mark.parametrize(
    ("kind", "family"),
    [*(("classes", family) for family in (*DROPPING, "vit", "deit")), *(("tags", family) for family in DROPPING)],
)
def test_dropout_is_placed_as_in_transformers(kind: str, family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a deterministic function of its rate as dropout, the logits show where it is applied."""

    rates = {"distilbert": SLIM_DROPS, "modernbert": {"classifier_dropout": 0.3}}.get(family, DROPS)
    model = (make_model if kind == "classes" else make_tagger)(family, **rates)
    shape = architecture_of(model)
    module = fuse(model, HeadPlan.all_heads(family, shape.layers, shape.heads, 2))
    inputs = make_inputs(family)
    still = module.eval()(**inputs).member_logits
    drop_without_chance(monkeypatch)
    logits, expected = module.train()(**inputs).member_logits, model.train()(**inputs).logits
    real = inputs["attention_mask"].bool() if kind == "tags" else slice(None)
    for member in (0, 1):
        torch.testing.assert_close(logits[member][real], expected[real], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(logits, still, atol=1e-3), "it is there"


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "distilbert", "vit", "deit"])
def test_dropout_of_the_first_token_s_attention_is_that_of_transformers(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of one layer has only this attention. Dropped probabilities do not sum to one, so that less of a
    value's bias remains; if keys are not computed, hydrant itself drops them."""
    if family == "distilbert":
        dropping: dict[str, Any] = {"n_layers": 1, "attention_dropout": 0.4, "dropout": 0.0, "seq_classif_dropout": 0.0}
    else:
        dropping = {"num_hidden_layers": 1, "attention_probs_dropout_prob": 0.4, "hidden_dropout_prob": 0.0}
    models = [make_model(family, seed, **dropping) for seed in (1, 2)]
    module, inputs = fuse(models, keep_separate="all"), make_inputs(family)
    still = module.eval()(**inputs).member_logits
    drop_without_chance(monkeypatch)
    logits = module.train()(**inputs).member_logits
    for member, model in enumerate(models):
        model.set_attn_implementation("eager")  # the only one that calls the replaced dropout
        torch.testing.assert_close(logits[member], model.train()(**inputs).logits, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(logits, still, atol=1e-3), "it is there"


CONFIGS = {
    "DebertaV2ForSequenceClassification": ("deberta-v2", "--traced"),
    "XLMRobertaForQuestionAnswering": ("xlm-roberta", "XLMRobertaForSequenceClassification"),
    "CLIPVisionModel": ("clip", "CLIPForImageClassification"),
    "T5ForConditionalGeneration": ("t5", "…ForSequenceClassification or …"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_refusal_says_what_to_do_instead(name: str, tmp_path: Path) -> None:
    kind, remedy = CONFIGS[name]
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [name], "model_type": kind}))
    for refused in (lambda: check_supported(tmp_path), lambda: load_model(tmp_path)):
        with pytest.raises(UnsupportedModelError, match=f"architecture {name} is not supported") as caught:
            refused()
        line = str(caught.value)
        assert remedy in line.partition("; supported: ")[0]
        assert line.count("\n") == 0
        assert line.endswith(", ".join(layout.model_class for layout in LAYOUTS))


def test_a_refusal_does_not_wait_for_pytorch(tmp_path: Path) -> None:
    """Importing it takes seconds; a small file decides if the class is supported."""
    config = {"architectures": ["DebertaV2ForSequenceClassification"], "model_type": "deberta-v2"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    code = (
        "import sys; from hydrant.cli.main import main\n"
        f"try: status = main(['fuse', {str(tmp_path)!r}, '-o', {str(tmp_path / 'out')!r}])\n"
        "except SystemExit as end: status = end.code\n"
        "print(status, 'torch' in sys.modules, 'transformers' in sys.modules)"
    )
    done = fresh_python(code)
    assert done.stdout.split() == ["2", "False", "False"], done.stdout
    assert done.stderr.startswith("hydrant: error: architecture DebertaV2ForSequenceClassification is not supported: ")


def test_every_classifier_of_transformers_is_read_or_refused_in_one_line() -> None:
    supported = {layout.model_class for layout in LAYOUTS}
    ends = ("ForSequenceClassification", "ForImageClassification", "ForTokenClassification")
    classes = [name for name in dir(transformers) if name.endswith(ends) and not name.startswith("Auto")]
    assert len(classes) > 80
    assert {name for name in supported if name != "CLIPModel"} <= set(classes)
    for name in set(classes) - supported:
        assert "--traced" in str(unsupported(name, DECLARED)), name


def quantised(model: Any) -> Any:
    linear = model.bert.encoder.layer[1].intermediate.dense
    linear.weight = torch.nn.Parameter((linear.weight * 100).to(torch.int8), requires_grad=False)
    return model


def shortened(model: Any) -> Any:
    model.bert.encoder.layer = model.bert.encoder.layer[:2]
    return model


def configured(model: Any, **settings: Any) -> Any:
    for name, value in settings.items():
        setattr(model.config, name, value)
    return model


def adapted(model: Any) -> Any:
    peft = pytest.importorskip("peft")
    model.add_adapter(peft.LoraConfig(target_modules=["query"]))
    return model


def pruned(model: Any) -> Any:
    prune.identity(model.classifier, "weight")
    return model


CHANGED: dict[str, tuple[Any, str]] = {
    "int8": (quantised, "intermediate.dense.weight holds int8"),
    "shape": (lambda model: configured(model, type_vocab_size=3), "token_type_embeddings.weight has shape [2"),
    "a layer less": (shortened, "2 layers"),
    "adapter": (adapted, "self.query.weight; it has an adapter of PEFT"),
    "mask": (pruned, "classifier.weight; it is under a mask"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_changed_model_is_rejected_with_the_change(name: str) -> None:
    change, message = CHANGED[name]
    with pytest.raises(HydrantError) as caught:
        fuse(change(make_model("bert")))
    assert message in str(caught.value)


def drop_without_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace dropout by a deterministic function of its rate, in transformers and in fused modules."""

    def dropped(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        return x - p * x.abs() if training else x

    monkeypatch.setattr(torch.nn.functional, "dropout", dropped)
    monkeypatch.setattr("hydrant.fusion.module.dropout", dropped)
    monkeypatch.setattr("hydrant.fusion.grouped.dropout", dropped)
