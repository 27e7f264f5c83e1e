"""Traced models of every task: one score, several labels, and a class for each token, as DeBERTa-v3 shapes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import onnxruntime
import oracle
import pytest
import torch
from hydrant import GraphForm
from hydrant.bundle.traced import read_architecture
from hydrant.errors import BundleError, InputError
from hydrant.fusion import TracedClassifier
from support import make_tokenizer, run_cli
from token_support import make_word_tokenizer, sentences
from traced_support import by_hooks, inputs_of, make

WORDS = ["hello world", "transfer money", "what is the weather today"]

TASKS = {"score": "deberta-v3-score", "multi_label": "deberta-v3-labels", "tokens": "deberta-v3-tokens"}

LABELS = {"score": ("0.25", "0.5", "1.0"), "multi_label": ("LABEL_0", "LABEL_1|LABEL_2", "LABEL_0|LABEL_1|LABEL_2")}


def write(path: Path, task: str, seed: int) -> Path:
    """Labelled data of a task."""
    if task == "tokens":
        tags = ["LABEL_0", "LABEL_1", "LABEL_2"]
        rows = [{"tokens": words, "tags": [tags[len(word) % 3] for word in words]} for words in sentences(60, seed)[0]]
        (path / f"{seed}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
        return path / f"{seed}.jsonl"
    rows = [f"{WORDS[i % 3]} {'today ' * ((i + seed) % 7)}{'is ' * (i % 4)},{LABELS[task][i % 3]}" for i in range(60)]
    (path / f"{seed}.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    return path / f"{seed}.csv"


def expected_of(task: str, logits: np.ndarray) -> dict[str, np.ndarray]:
    """What members' logits [M, B, C] or [M, B, T, C] come to, by formulas of this file and the oracle's."""
    if task == "score":
        members = 1 / (1 + np.exp(-logits[..., 0]))
        return {"score": members.mean(axis=0), "score_variance": members.var(axis=0), "member_scores": members.T}
    if task == "tokens":
        return {**oracle.uncertainty(oracle.softmax(logits)), "energy": -np.log(np.exp(logits).sum(axis=-1)).mean(0)}
    members = 1 / (1 + np.exp(-logits))
    total, each = oracle.binary_entropy(members.mean(axis=0)), oracle.binary_entropy(members).mean(axis=0)
    return {
        "probabilities": members.mean(axis=0),
        "label_entropy": total,
        "label_mutual_information": total - each,
        "predictive_entropy": total.sum(axis=1),
        "expected_entropy": each.sum(axis=1),
        "mutual_information": (total - each).sum(axis=1),
        "energy": -np.log1p(np.exp(logits)).sum(axis=2).mean(axis=0),
        "member_probabilities": members.swapaxes(0, 1),
    }


@pytest.mark.parametrize("task", TASKS)
def test_from_plan_to_prediction(task: str, tmp_path: Path) -> None:
    checkpoint, out, plan = tmp_path / "checkpoint", tmp_path / "out", tmp_path / "plan.json"
    model = make(TASKS[task])
    model.save_pretrained(checkpoint)
    (make_word_tokenizer if task == "tokens" else make_tokenizer)(tmp_path / "words").save_pretrained(checkpoint)
    data, more = write(tmp_path, task, 1), write(tmp_path, task, 2)

    def does(*arguments: Any) -> str:
        result = run_cli(*arguments)
        assert result.returncode == 0, result.stderr + result.stdout
        return result.stdout

    does(
        "plan",
        checkpoint,
        "--traced",
        "--data",
        data,
        "--keep",
        "0.5",
        "--fork-from",
        "1",
        "--members",
        "2",
        "-o",
        plan,
    )
    chosen = hydrant.HeadPlan.load(plan)
    assert chosen.head_counts() == [[4, 2], [4, 2]]
    other = tuple(sorted({0, 1, 2, 3} - set(chosen.members[0][1])))  # members that share no head of the last block
    chosen = replace(chosen, members=(chosen.members[0], (chosen.members[0][0], other)))
    chosen.save(plan)
    does("fuse", checkpoint, "--traced", "--plan", plan, "-o", out)
    graph = hydrant.export_onnx(out, form=GraphForm(member_outputs=True))
    check_graph(graph, task, model, chosen, out)
    does("calibrate", out, "--data", more, *([] if task == "tokens" else ["--fit", data]))
    assert "verified: every gate holds" in does("verify", out, "--examples", "20", "--backend", "onnxruntime")
    figures = json.loads(does("evaluate", out, "--data", data, "--bootstrap", "0", "--json"))
    assert figures["models"][0]["name"] == "out"
    told = does("inspect", out)
    assert "traced, sliced: members of DebertaV2For" in told
    found = json.loads(does("predict", out, *WORDS, "--json"))["predictions"]
    assert len(found) == len(WORDS)
    answers = {name: hydrant.load(out, name).predict(WORDS).to_dict() for name in ("torch", "onnxruntime", "openvino")}
    names = (
        ["score", "score_variance", "distance"]
        if task == "score"
        else ["probabilities", "mutual_information", "energy"]
    )
    names += ["label_entropy", "distance"] if task == "multi_label" else []
    for name in names:
        wanted = answers["torch"][name]
        for other in ("onnxruntime", "openvino"):
            scale = max(1.0, float(np.nanmax(np.abs(wanted))))
            np.testing.assert_allclose(answers[other][name], wanted, atol=1e-4 * scale)
    if task == "tokens":
        assert {"words", "spans"} <= set(found[0])
        with pytest.raises(InputError, match="a traced model that tags tokens has no distance"):
            hydrant.calibrate(out, more, fit=data)
    elif task == "score":
        assert found[0]["interval_low"] <= found[0]["score"] <= found[0]["interval_high"]
    else:
        assert hydrant.load(out).calibration.labels is not None


def check_graph(graph: Path, task: str, model: Any, plan: hydrant.HeadPlan, out: Path) -> None:
    """Graph and PyTorch module give what the original gives whose heads are silenced by hooks."""
    session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    ensemble = hydrant.fuse(model, plan, traced=True)
    assert isinstance(ensemble, TracedClassifier)
    for batch, tokens in ((1, 3), (4, 17)):
        inputs = inputs_of(ensemble.architecture, batch, tokens)
        real = inputs["attention_mask"].numpy().astype(bool)
        logits = by_hooks(TASKS[task], model, plan, inputs)
        given = dict(zip(names, session.run(names, {key: each.numpy() for key, each in inputs.items()}), strict=True))
        with torch.no_grad():
            module = ensemble(**inputs)
        for name, wanted in expected_of(task, logits).items():
            for found in (given[name], getattr(module, name).numpy()):
                assert found.shape == wanted.shape
                both = (found[real], wanted[real]) if task == "tokens" else (found, wanted)
                np.testing.assert_allclose(*both, atol=1e-4 if name == "energy" else 2e-5)
    assert float(np.abs(logits[0] - logits[1]).max()) > 1e-4  # heads matter, so agreement means something


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": "poetry"}, "task is 'poetry'"),
        ({"task": "score"}, "it gives a score and has 3 classes"),
        ({"score_activation": "sigmoid"}, "score_activation is 'sigmoid'"),
        ({"task": "classification", "classes": 1}, "classes is 1"),
    ],
)
def test_a_task_that_contradicts_its_model_is_refused(change: dict[str, Any], message: str) -> None:
    from hydrant.tracing.loading import prepared
    from hydrant.tracing.members import trace

    told = trace(prepared(make("deberta-v3-labels"))).to_json()
    assert read_architecture(told).task == "multi_label"
    with pytest.raises(BundleError, match=message):
        read_architecture({**told, **change})
    old = {name: value for name, value in told.items() if name not in ("task", "score_activation")}
    assert read_architecture(old).task == "classification"  # bundles made before there were others
