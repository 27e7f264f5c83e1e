"""The model card of a bundle, read as huggingface_hub reads it."""

import ast
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import ModelCard
from hydrant import calibrate, evaluate, export_onnx, fuse, save_bundle
from hydrant.bundle.store import CALIBRATION, Bundle
from hydrant.calib import Conformal, Coverage, FalseAlarm
from hydrant.evaluation import EvaluationOptions
from hydrant.evaluation.report import REPORT
from hydrant.hub.card import model_card
from hydrant.models.checkpoint import load_processor
from support import make_model, random_plan

OLDER = Path(__file__).parent / "bundles_0_2_0"
TAGS = {"text-classification", "text-ranking", "token-classification", "image-classification", "audio-classification"}
"""Of the Hub's tasks, packages/tasks/src/pipelines.ts in huggingface/huggingface.js."""

CARD = """---
license: other
license_name: acme-1
license_link: LICENSE
language: en
datasets: [acme/texts, ../secret, 7]
base_model: acme/another
---
# A checkpoint
"""

HOSTILE = "a|b\n---\nlicense: mit\n---\n```\n<script>`*x*_[y](z) $k$ # \u202e"


def parsed(bundle: Bundle | Path, repository: str | None = None) -> tuple[dict[str, Any], str]:
    """Metadata and text of a card, which huggingface_hub writes again without a change."""
    text = model_card(bundle if isinstance(bundle, Bundle) else Bundle.open(bundle), repository)
    card = ModelCard(text)
    data = card.data.to_dict()
    assert str(card) == text
    assert data["library_name"] == "hydrant"
    assert data["pipeline_tag"] in TAGS
    assert "onnx" in data["tags"]
    assert not re.search(r"/tmp|/home|/work", text)
    for code in re.findall("```python\n(.*?)```", text, flags=re.DOTALL):
        ast.parse(code)
    for results in data.get("model-index", []):
        assert all(each["metrics"] and all(each["dataset"].values()) for each in results["results"])
    return data, card.text


@pytest.fixture(scope="module")
def made(bert_checkpoint: Path, text_csv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibrated and evaluated bundle of a checkpoint with a card."""
    folder = tmp_path_factory.mktemp("card")
    shutil.copytree(bert_checkpoint, folder / "tiny")
    (folder / "tiny" / "README.md").write_text(CARD)
    ensemble = fuse(folder / "tiny", random_plan("bert", 3))
    save_bundle(ensemble, folder / "out", load_processor(folder / "tiny", "text"))
    export_onnx(folder / "out")
    ood, flags = (["money"] * 3, [0] * 3), FalseAlarm(0.2)
    calibrate(folder / "out", text_csv, ood, fit=text_csv, abstain=Coverage(0.5), flags=flags, sets=Conformal(0.2),
              force=True)  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hydrant.evaluation.evaluator.pictures", lambda *_: {})
        figures = EvaluationOptions(bootstrap=20)
        evaluate(folder / "out", text_csv, ood, compare=[folder / "tiny"], figures=figures, force=True)
    return folder / "out"


def test_a_fully_made_bundle(made: Path) -> None:
    data, text = parsed(made, "me/tiny")
    assert (data["license"], data["license_name"]) == ("other", "acme-1")
    assert (data["datasets"], data["language"]) == (["acme/texts"], ["en"])
    assert not {"base_model", "license_link"} & set(data)  # a folder is no name on the Hub
    stored = json.loads((made / REPORT).read_text())
    [index] = data["model-index"]
    known, ood = index["results"]
    assert (index["name"], known["dataset"]["name"]) == ("me/tiny", "train.csv")
    values = {metric["type"]: metric["value"] for metric in known["metrics"]}
    assert values["accuracy"] == round(stored["models"][0]["figures"]["accuracy"]["value"], 6)
    assert {metric["type"] for metric in ood["metrics"]} == {"auroc", "fpr95"}
    assert stored["verdict"][0]["sentence"] in text
    for words in ("at least 50.0% of new inputs", "probability 0.8 or more", 'load("me/tiny")', "hydrant fuse"):
        assert words in text


def test_an_outdated_evaluation_is_left_out(made: Path, text_csv: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "again")
    calibrate(tmp_path / "again", text_csv, abstain=Coverage(0.4), flags=FalseAlarm(0.2), force=True)
    data, text = parsed(tmp_path / "again")
    assert "model-index" not in data
    assert "## Results" not in text
    assert "fitted without OOD data" in text


def test_a_bundle_with_nothing_fitted(text_bundle: Path) -> None:
    data, text = parsed(text_bundle)
    assert set(data) == {"library_name", "pipeline_tag", "tags"}
    assert "not calibrated" in text
    assert "USER/REPO" in text


@pytest.mark.parametrize("folder", sorted(OLDER.glob("*ed-*")), ids=lambda folder: folder.name)
def test_every_task_and_older_bundles(folder: Path) -> None:
    data, _ = parsed(folder)
    tag = {"tokens": "token-classification", "image": "image-classification"}
    assert data["pipeline_tag"] == tag.get(folder.name.partition("-")[2], "text-classification")


def test_a_hub_name_and_its_relation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, cache = "a" * 40, tmp_path / "models--acme--tiny"
    (snapshot := cache / "snapshots" / commit).mkdir(parents=True)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text(commit)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "README.md").write_text(CARD)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    model = make_model("bert")
    model.config.name_or_path = "acme/tiny"
    bundle = save_bundle(fuse(model, random_plan("bert", 2)), tmp_path / "out", tensors_only=True)
    for provenance, relation in (({}, "quantized"), ({"tuned": {"data": "hf:acme/more:x:train"}}, "finetune")):
        fusion = {**bundle.manifest["fusion"], **provenance}
        data, text = parsed(replace(bundle, manifest={**bundle.manifest, "fusion": fusion}))
        assert (data["base_model"], data["base_model_relation"]) == ("acme/tiny", relation)
        assert data["license_link"] == f"https://huggingface.co/acme/tiny/blob/{commit}/LICENSE"
        assert f"https://huggingface.co/acme/tiny/tree/{commit}" in text
        assert data["datasets"] == ["acme/texts", *(["acme/more"] if provenance else [])]
    (snapshot / "README.md").write_text("---\n: [\n---\n")  # not YAML
    assert "license" not in fuse(model, random_plan("bert", 2)).provenance["base"][0]


def test_hostile_names_stay_in_their_place(tmp_path: Path) -> None:
    shutil.copytree(OLDER / "declared-score", tmp_path / "out")
    figure = {"value": 0.5, "low": None, "high": None}
    model = {"name": HOSTILE, "figures": {"ndcg": figure, "rmse": figure}}
    report = {"data": HOSTILE, "examples": 3, "models": [model, model], "verdict": [{"sentence": HOSTILE}]}
    bundle = Bundle.open(tmp_path / "out")
    report["calibration"] = bundle.digests()[CALIBRATION]
    bundle = bundle.add({REPORT: json.dumps(report).encode()})
    data, text = parsed(replace(bundle, manifest={**bundle.manifest, "labels": [HOSTILE]}), "me/it")
    assert data["pipeline_tag"] == "text-ranking"
    assert data["model-index"][0]["results"][0]["dataset"]["name"] == HOSTILE
    assert "license" not in data
    assert not re.search("<script|\u202e|^(---|license)", text, flags=re.MULTILINE)
    assert text.count("\n```") == 8
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", row)) for row in rows} == {4}
