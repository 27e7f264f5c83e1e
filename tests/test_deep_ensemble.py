"""A Deep Ensemble in one bundle equals its separate checkpoints in every verb."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import oracle
import pandas
import pytest
import torch
import transformers
from support import run_cli, save_checkpoint

pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three tiny BERTs that differ in every weight, with one tokenizer."""
    folder = tmp_path_factory.mktemp("checkpoints")
    return [save_checkpoint(folder / f"m{seed}", seed + 1) for seed in range(3)]


@pytest.mark.slow
def test_deep_ensemble_end_to_end(checkpoints: list[Path], text_csv: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run_cli("fuse", *checkpoints, "--keep-separate", "all", "-o", out)
    assert done.returncode == 0, done.stderr
    assert "merge error" not in done.stdout, "nothing was averaged"
    assert run_cli("export", out).returncode == 0
    done = run_cli("verify", out, "--examples", 100)
    assert done.returncode == 0, done.stdout + done.stderr
    data = pandas.read_csv(text_csv)
    each = []
    for checkpoint in checkpoints:
        model = transformers.BertForSequenceClassification.from_pretrained(checkpoint).eval()
        tokens = transformers.AutoTokenizer.from_pretrained(checkpoint)(
            list(data.text), padding=True, return_tensors="pt"
        )
        with torch.no_grad():
            each.append(oracle.softmax(model(**tokens).logits.double().numpy()))
    expected = oracle.uncertainty(np.stack(each))
    done = run_cli("predict", out, "--input", text_csv, "--probabilities", "--backend", "onnxruntime", "--json")
    rows = json.loads(done.stdout)["predictions"]
    actual = np.array([list(row["probabilities"].values()) for row in rows])
    np.testing.assert_allclose(actual, expected["probabilities"], atol=1e-5)
    mutual = [row["mutual_information"] for row in rows]
    np.testing.assert_allclose(mutual, expected["mutual_information"], atol=1e-5)
    done = run_cli("evaluate", out, "--data", text_csv, "--compare", *checkpoints, "--bootstrap", 0, "--json")
    assert done.returncode == 0, done.stderr
    models = json.loads(done.stdout)["models"]
    assert [model["name"] for model in models] == ["out", "m0", "m1", "m2"]
    truth = data.label.map(dict(zip("abcde", range(5), strict=True))).to_numpy()
    for model, probabilities in zip(models, [expected["probabilities"], *each], strict=True):
        nll = -np.log(probabilities[np.arange(len(truth)), truth]).mean()
        assert model["figures"]["nll"]["value"] == pytest.approx(nll, abs=1e-5)
