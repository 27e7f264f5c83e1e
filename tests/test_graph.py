"""Contract of the exported graph: names, shapes, metadata, operators, bytes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import oracle
import pytest
import torch
from hydrant import export_onnx, fuse, save_bundle
from onnx_reference import run_ort
from support import CLASSES, FAMILIES, IMAGE_FAMILIES, make_model, make_tokenizer, random_plan

SCORES = ["predictive_entropy", "expected_entropy", "mutual_information", "disagreement", "energy"]


def shapes(values: list[onnx.ValueInfoProto]) -> dict[str, list[int | str]]:
    return {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in values
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_inputs_outputs_and_operators(family: str, tmp_path: Path) -> None:
    save_bundle(fuse(make_model(family), random_plan(family, 3)), tmp_path / "bundle")
    path = export_onnx(tmp_path / "bundle")
    model, content = onnx.load(path), path.read_bytes()
    assert export_onnx(tmp_path / "bundle").read_bytes() == content, "not deterministic"
    if family in IMAGE_FAMILIES:
        assert shapes(model.graph.input) == {"pixel_values": ["batch", 3, 12, 12]}
    else:
        names = ["input_ids", "attention_mask"] + ["token_type_ids"] * (family in ("bert", "electra"))
        assert shapes(model.graph.input) == {name: ["batch", "sequence"] for name in names}
        assert {v.type.tensor_type.elem_type for v in model.graph.input} == {onnx.TensorProto.INT64}
    by_class = {name: ["batch", CLASSES] for name in ("probabilities", "logits")}
    assert shapes(model.graph.output) == {**by_class, **{name: ["batch"] for name in SCORES}}
    assert {v.type.tensor_type.elem_type for v in model.graph.output} == {onnx.TensorProto.FLOAT}
    assert {node.domain for node in model.graph.node} == {""}
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 20)]
    assert len({node.name for node in model.graph.node}) == len(model.graph.node)


def test_metadata_for_runtimes_without_python(bert_checkpoint: Path, tmp_path: Path) -> None:
    ensemble = fuse(str(bert_checkpoint), random_plan("bert", 2))
    ensemble.temperature = 1.25
    save_bundle(ensemble, tmp_path / "bundle", make_tokenizer(tmp_path / "source"))
    model = onnx.load(export_onnx(tmp_path / "bundle"))
    facts = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(facts["hydrant.labels"]) == ["a", "b", "c", "d", "e"]
    assert facts["hydrant.family"] == "bert"
    assert facts["hydrant.members"] == "2"
    assert float(facts["hydrant.temperature"]) == 1.25
    assert json.loads(facts["hydrant.preprocessing"])["max_tokens"] == 40
    assert list(facts) == sorted(facts)


def test_one_graph_accepts_every_batch_and_sequence(tmp_path: Path) -> None:
    """Outputs equal the oracle's for each shape, so no dynamic axis was fixed."""
    model, plan = make_model("bert"), random_plan("bert", 3)
    save_bundle(fuse(model, plan), tmp_path / "bundle")
    path = export_onnx(tmp_path / "bundle")
    for batch, tokens in ((1, 1), (1, 40), (7, 13)):
        ids = torch.randint(5, 99, (batch, tokens), generator=torch.Generator().manual_seed(tokens))
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
        got = run_ort(path, {name: tensor.numpy() for name, tensor in inputs.items()})["probabilities"]
        np.testing.assert_allclose(got, oracle.ensemble([model], plan, inputs)["probabilities"], atol=1e-5)
