"""``hydrant inspect`` on malformed files with correct digests."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydrant import Bundle, estimate_cost, fuse, save_bundle
from hydrant.cli.inspect import inspect_bundle, inspect_text
from support import make_model, random_plan, stdout_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_bundle(fuse(make_model("bert"), random_plan("bert", 3)), tmp_path / "bundle")
    return tmp_path / "bundle"


def changed(name: str, **change: Any) -> Callable[[Path], None]:
    """Change values of a JSON file, and update its digest."""

    def forge(path: Path) -> None:
        bundle = Bundle.open(path)
        bundle.add({name: json.dumps({**bundle.read_json(name), **change}).encode()})

    return forge


def replaced(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda path: Bundle.open(path).add({name: content}) and None


MALFORMED = {
    "calibration is a list": (replaced("calibration.json", b"[]"), "calibration.json"),
    "plan of other heads": (changed("plan.json", heads=5), "fused.safetensors"),
    "weights": (replaced("fused.safetensors", b"no weights"), "fused.safetensors"),
    "report of nothing": (replaced("reports/verify.json", b"{}"), "reports/verify.json"),
    "processor": (replaced("processor/tokenizer.json", b"{"), "processor"),
    "graph": (replaced("model.fp32.onnx", b"no graph"), "model.fp32.onnx"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_files_are_reported_with_the_reason(name: str, path: Path) -> None:
    forge, words = MALFORMED[name]
    assert inspect_bundle(path)["problems"] == []
    forge(path)
    facts = inspect_bundle(path)
    text = inspect_text(facts)
    assert any(re.search(words, problem) for problem in facts["problems"]), facts["problems"]
    assert all(f"PROBLEM       {problem}" in text for problem in facts["problems"])
    assert "bundle        " in text, "other lines are still shown"


def test_an_open_bundle_is_inspected_by_its_manifest(path: Path) -> None:
    """The open manifest may be signed; the one on disk may have changed."""
    opened = Bundle.open(path)
    changed("calibration.json", temperature=2.0)(path)
    facts = inspect_bundle(opened)
    assert facts["files"]["calibration.json"]["sha256"] == opened.manifest["files"]["calibration.json"]["sha256"]
    assert [problem for problem in facts["problems"] if "was changed by another process meanwhile" in problem]
    assert inspect_bundle(path)["problems"] == []


def test_fuse_counts_parameters_alike(bert_checkpoint: Path, tmp_path: Path) -> None:
    """For unequal members the weights file has padding and duplicate heads."""
    random_plan("bert", 3).save(tmp_path / "plan.json")
    done = stdout_of("fuse", bert_checkpoint, "--plan", tmp_path / "plan.json", "-o", tmp_path / "bundle", "--json")
    assert json.loads(done)["parameters"] == estimate_cost(tmp_path / "bundle").fused.parameters
