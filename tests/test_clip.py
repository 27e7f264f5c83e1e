"""CLIP zero-shot: class prompts, the frozen classifier, and the whole path, against ``CLIPModel`` itself."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import peft
import pytest
import torch
from hydrant import Bundle, HeadPlan, export_onnx, fuse, load, load_zero_shot, save_bundle
from hydrant.errors import InputError
from hydrant.models.checkpoint import load_processor
from hydrant.models.prompts import TEMPLATES, Prompts, read_prompts
from PIL import Image
from support import HEADS, make_clip_tokenizer, make_inputs, make_model, stdout_of
from test_cost import assert_cost
from test_parity import run_onnx
from transformers import CLIPImageProcessorPil, CLIPProcessor

NAMES = ("cat", "dog", "tall tree")


def dual_encoder(seed: int = 0) -> Any:
    return make_model("clip", seed=seed).dual_encoder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny CLIP as transformers saves one: model, tokenizer, ``processor_config.json``."""
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny-clip"
    dual_encoder().save_pretrained(folder)
    images = CLIPImageProcessorPil(size={"shortest_edge": 12}, crop_size={"height": 12, "width": 12})
    CLIPProcessor(images, make_clip_tokenizer()).save_pretrained(folder)
    assert not (folder / "preprocessor_config.json").exists()
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images that are not square, in a folder for each class."""
    return draw(tmp_path_factory.mktemp("pictures"), 6)


def draw(folder: Path, count: int) -> Path:
    rng = np.random.default_rng(count)
    for name in NAMES:
        (folder / name).mkdir(parents=True)
        for index in range(count):
            pixels = rng.integers(0, 256, (14 + index, 25 - index % 7, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index}.png")
    return folder


def test_logits_are_those_of_clip_model() -> None:
    model, inputs = make_model("clip"), make_inputs("clip")
    with torch.no_grad():
        expected = model.dual_encoder(**inputs, **model.prompt_tokens).logits_per_image
        torch.testing.assert_close(model(**inputs).logits, expected, atol=1e-5, rtol=1e-5)
    assert expected.softmax(-1).max(-1).values.min() < 0.9
    assert expected.std() > 0.1


def test_prompts_of_a_class_are_averaged_as_in_the_paper() -> None:
    """Unit embeddings of ``CLIPModel``, their mean, normalized again."""
    clip, inputs, tokenizer = dual_encoder(), make_inputs("clip"), make_clip_tokenizer()
    templates = ["a photo of a {}.", "the {}", "{} by {}"]
    model = load_zero_shot(clip, list(NAMES), templates, tokenizer=tokenizer)
    columns = []
    for name in NAMES:
        texts = [template.replace("{}", name) for template in templates]
        with torch.no_grad():
            output = clip(**inputs, **tokenizer(texts, padding=True, return_tensors="pt"))
        mean = output.text_embeds.double().mean(dim=0)
        columns.append(output.image_embeds.double() @ (mean / mean.norm()))
    expected = clip.logit_scale.double().exp() * torch.stack(columns, dim=1)
    with torch.no_grad():
        torch.testing.assert_close(model(**inputs).logits.double(), expected, atol=1e-5, rtol=1e-5)
    assert model.config.num_labels == 3
    assert [model.config.id2label[index] for index in range(3)] == list(NAMES)
    assert not model.classifier.weight.requires_grad


def test_images_are_prepared_as_by_transformers(checkpoint: Path, pictures: Path, tmp_path: Path) -> None:
    reference = load_processor(checkpoint, "image")
    model = load_zero_shot(checkpoint, list(NAMES))
    paths = sorted(pictures.rglob("*.png"))
    pixels = reference([Image.open(path) for path in paths], return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        expected = model(pixel_values=pixels).logits.softmax(-1).numpy()
    whole = CLIPProcessor.from_pretrained(checkpoint)
    for number, processor in enumerate((reference, whole)):
        bundle = save_bundle(fuse(model), tmp_path / str(number), processor)
        export_onnx(bundle)
        with load(bundle, "onnxruntime") as predictor:
            assert predictor.labels == list(NAMES)
            np.testing.assert_allclose(predictor.predict(paths).probabilities, expected, atol=1e-5)


def test_the_whole_path(checkpoint: Path, pictures: Path, tmp_path: Path) -> None:
    """plan → fuse → export → verify → predict → inspect → evaluate, in subprocesses."""
    (tmp_path / "names.txt").write_text("cat\n\ndog\ntall tree\n", encoding="utf-8")
    (tmp_path / "prompts.json").write_text(json.dumps({"classes": list(NAMES), "templates": ["a {}", "the {}."]}))
    options = ("--classes", tmp_path / "names.txt", "--template", "a {}", "--template", "the {}.")
    out, plan = tmp_path / "out", tmp_path / "plan.json"
    stdout_of("plan", checkpoint, *options, "--data", pictures, "--members", 2, "--keep", 2, "-o", plan)
    stdout_of("fuse", checkpoint, "--classes", tmp_path / "prompts.json", "--plan", plan, "-o", out)
    stdout_of("export", out)
    assert "every gate holds" in stdout_of("verify", out, "--data", pictures)
    predictions = json.loads(stdout_of("predict", out, pictures / "cat" / "0.png", "--probabilities", "--json"))
    assert "a {}, the {}." in stdout_of("inspect", out)
    more = draw(tmp_path / "more", 24)
    baselines = ("--baselines", "--fit", more, "--ood", more / "cat", "--bootstrap", 0)
    report = json.loads(stdout_of("evaluate", out, "--data", pictures, "--compare", checkpoint, *baselines, "--json"))
    model = load_zero_shot(checkpoint, list(NAMES), ["a {}", "the {}."])
    pixels = load_processor(checkpoint, "image")(Image.open(pictures / "cat" / "0.png"), return_tensors="pt")
    members = []
    for keep in HeadPlan.load(plan).members:
        with oracle.silenced(model, keep, HEADS), torch.no_grad():
            members.append(model(**pixels).logits.double().numpy())
    expected = oracle.softmax(np.stack(members)).mean(axis=0)[0]
    prediction = predictions["predictions"][0] if isinstance(predictions, dict) else predictions[0]
    np.testing.assert_allclose([prediction["probabilities"][name] for name in NAMES], expected, atol=1e-4)
    assert [entry["members"] for entry in report["models"]] == [2, 1]
    files = sorted(more.rglob("*.png"))
    pixels = load_processor(checkpoint, "image")([Image.open(file) for file in files], return_tensors="pt")
    answers = model(**pixels).logits.argmax(1).tolist()
    wrong = sum(NAMES[answer] != file.parent.name for answer, file in zip(answers, files, strict=True))
    learned = f"trained on {wrong} wrong and {len(files) - wrong} right answers of the model itself"
    assert report["models"][1]["baselines"]["settings"]["vilu"] == learned
    assert Bundle.open(out).manifest["fusion"]["zero_shot"]["templates"] == ["a {}", "the {}."]


def test_forms_of_prompts(tmp_path: Path) -> None:
    names, plain = ["cat", "dog"], Prompts(("cat", "dog"), TEMPLATES, (("a photo of a cat.",), ("a photo of a dog.",)))
    (tmp_path / "names.txt").write_text("\ufeffcat \n\n dog\n", encoding="utf-8")
    (tmp_path / "list.json").write_text('["cat", "dog"]')
    (tmp_path / "object.json").write_text('{"classes": ["cat", "dog"]}')
    files = [tmp_path / "names.txt", str(tmp_path / "list.json"), tmp_path / "object.json"]
    assert [read_prompts(form) for form in (names, "cat, dog", {"classes": names}, plain, *files)] == [plain] * 7
    both = read_prompts(names, ["a {}", "{} and {}"])
    assert both.texts == (("a cat", "cat and cat"), ("a dog", "dog and dog"))
    assert read_prompts({"classes": names, "templates": ["a {}", "{} and {}"]}) == both
    own = read_prompts({"cat": "a cat {}", "dog": ["a dog", "a puppy"]})
    assert own == Prompts(("cat", "dog"), (), (("a cat {}",), ("a dog", "a puppy")))
    for prompts in (plain, both, own):
        assert read_prompts(json.loads(json.dumps(prompts.to_json()))) == prompts


@pytest.mark.parametrize(("classes", "templates", "name"), [
    ("cat", None, "1 class"),
    ("cat,dog,cat", None, "cat"),
    (["cat", "a\x1b[2Jdog"], None, "2Jdog"),
    ("cat,dog", "\ud83d {}", "templates"),
    ({"cat": "a pet", "dog": "a pet"}, None, "'cat' and 'dog'"),
    ({"cat": "a", "dog": "b"}, "a {}", "templates"),
    ({"classes": ["a", "b"], "template": ["{}"]}, None, "template "),
    ("cat,dog", "a photo of a cat", "a photo of a cat"),
    ("missing.txt", None, r"missing\.txt"),
])  # fmt: skip
def test_unusable_prompts(classes: Any, templates: Any, name: str) -> None:
    with pytest.raises(InputError, match=name):
        read_prompts(classes, templates)


def test_adapters_of_the_image_tower(tmp_path: Path) -> None:
    """Members are PEFT's own CLIP, each with its adapter; the text tower is the base model's."""
    model, inputs = make_model("clip"), make_inputs("clip")
    folders, expected = [], []
    for member in range(2):
        config = peft.LoraConfig(r=3, target_modules=r".*vision_model.*\.(q_proj|out_proj|fc1)|visual_projection")
        adapted = peft.get_peft_model(dual_encoder(), config).eval()
        torch.manual_seed(member)
        with torch.no_grad():
            for parameter in (p for p in adapted.parameters() if p.requires_grad):
                parameter.normal_(0, 0.3)
            expected.append(adapted(**inputs, **model.prompt_tokens).logits_per_image.softmax(-1))
        adapted.save_pretrained(tmp_path / f"a{member}")
        folders.append(tmp_path / f"a{member}")
    members = torch.stack(expected)
    for low_rank in ("merge", "keep"):
        ensemble = fuse(model, adapters=folders, low_rank=low_rank)
        with torch.no_grad():
            np.testing.assert_allclose(ensemble(**inputs).member_logits.softmax(-1), members, atol=1e-5)
        bundle = save_bundle(ensemble, tmp_path / low_rank)
        assert bundle.manifest["fusion"]["zero_shot"] == model.prompts.to_json()
        outputs = run_onnx(export_onnx(bundle), inputs)
        np.testing.assert_allclose(outputs["probabilities"], members.mean(0), atol=1e-4)
        assert_cost(bundle.path, inputs)
    peft.get_peft_model(dual_encoder(), peft.LoraConfig(target_modules=["q_proj"])).save_pretrained(tmp_path / "both")
    with pytest.raises(InputError, match=r"changes '.*text_model"):
        fuse(model, adapters=[tmp_path / "both"])


def test_prompts_that_the_text_tower_cannot_read() -> None:
    clip, tokenizer = dual_encoder(), make_clip_tokenizer()
    with pytest.raises(InputError, match="102 tokens"):
        load_zero_shot(clip, {"cat": "a" * 100, "dog": "b"}, tokenizer=tokenizer)
    tokenizer.add_tokens([f"word{index}" for index in range(40)])
    with pytest.raises(InputError, match=r"token id \d+"):
        load_zero_shot(clip, "word39,dog", tokenizer=tokenizer)
    clip.config.text_config.eos_token_id = 60
    with pytest.raises(InputError, match="without the token 60"):
        load_zero_shot(clip, "cat,dog", tokenizer=tokenizer)
