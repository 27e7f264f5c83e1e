"""What docs/reference says of a bundle and of its graph, held to the bytes of small ones."""

import json
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import transformers
from hydrant import Bundle, Conformal, Coverage, GraphForm, HeadPlan, calibrate, export_onnx, fuse, save_bundle
from safetensors import safe_open
from safetensors.numpy import load_file
from support import CLASSES, FAMILIES, feeds, make_model, random_plan

PAGES = Path(__file__).parents[1] / "docs/reference"
MEMBERS = 2
LATER = [
    "tokenizer.onnx", "engines/NAME.engine", "engines/NAME.json", "hydrant.sig", "original_check.json", "reports/",
    "model.PRECISION.onnx.data",
]  # fmt: skip
"""Files that the small bundle lacks: other tests make them."""


def table(page: str, head: str, section: str = "") -> list[list[str]]:
    """Rows of the table whose first column has this head, in the section of a file or the whole page, as cells."""
    (text,) = [part for part in re.split(r"^## ", (PAGES / page).read_text(), flags=re.M)
               if part.startswith(f"`{section}`")] if section else [(PAGES / page).read_text()]  # fmt: skip
    (body,) = re.findall(rf"^\| {re.escape(head)} \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, flags=re.M)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines()]


def quoted(rows: list[list[str]], column: int = 0) -> list[str]:
    """What stands between backticks in a column, in order."""
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row[column])]


def make(family: str, folder: Path, processor: Any = None) -> Bundle:
    ensemble = fuse(make_model(family), random_plan(family, MEMBERS))
    save_bundle(ensemble, folder, processor, tensors_only=processor is None)
    export_onnx(folder, form=GraphForm(member_outputs=True))
    return Bundle.open(folder)


@pytest.fixture(scope="module", params=(*FAMILIES, "modernbert"))
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make(request.param, tmp_path_factory.mktemp("format") / "out")


@pytest.fixture(scope="module")
def calibrated(bert_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """A bundle of texts with a tokenizer, thresholds and prediction sets."""
    folder = tmp_path_factory.mktemp("calibrated") / "out"
    make("bert", folder, transformers.AutoTokenizer.from_pretrained(bert_checkpoint))
    inputs = feeds("bert", batch=120)
    labels = np.arange(120) % CLASSES
    training = (feeds("bert", batch=120, seed=1), labels)
    calibrate(folder, (inputs, labels), fit=training, abstain=Coverage(0.9), sets=Conformal(0.2))
    return Bundle.open(folder)


def test_files_of_a_bundle(calibrated: Bundle) -> None:
    told = [name for name in quoted(table("bundle.md", "file")) if not name.startswith("fp")]
    patterns = [name.replace("PRECISION", "*").replace("/", "/*") for name in told if name not in LATER]
    there = {str(path.relative_to(calibrated.path)) for path in calibrated.path.rglob("*") if path.is_file()}
    for name in there:
        assert any(fnmatchcase(name, pattern) for pattern in patterns), f"{name} is on no row"
    for pattern in patterns:
        assert any(fnmatchcase(name, pattern) for name in there), f"no file is a {pattern}"
    assert set(LATER) <= {*told, *quoted(table("bundle.md", "file"), 1)}
    assert set(calibrated.manifest["files"]) == there - {"hydrant.json"}
    for name in ("hydrant.json", "plan.json", "config.json", "calibration.json"):
        data = (calibrated.path / name).read_bytes()
        assert data == (json.dumps(json.loads(data), indent=1, ensure_ascii=False) + "\n").encode(), name


def test_keys_of_the_json_files(calibrated: Bundle) -> None:
    for name, head in (("hydrant.json", "key"), ("config.json", "keys"), ("calibration.json", "key")):
        assert sorted(quoted(table("bundle.md", head, name))) == sorted(
            json.loads((calibrated.path / name).read_bytes())
        ), name
    facts = calibrated.calibration()
    assert facts["schema"] == calibrated.manifest["schema"] == 1
    assert sorted(facts["thresholds"]) == ["abstain", "ood"]
    for threshold in facts["thresholds"].values():
        assert quoted(table("bundle.md", "key of a threshold")) == list(threshold)
    assert quoted(table("bundle.md", "key of `conformal`")) == list(facts["conformal"])
    told = table("bundle.md", "key of `reference`")
    assert [row[0].strip("`") for row in told] == list(facts["reference"])
    assert set(facts["reference"]["rates"]) <= set(quoted(told, 1))


def test_bytes_of_the_examples(tmp_path: Path) -> None:
    text = (PAGES / "bundle.md").read_text()
    (shown,) = re.findall(r"^```json\n(.*)\n```$", text, flags=re.M)
    plan = HeadPlan.from_json(json.loads(shown))
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=2, num_attention_heads=4, intermediate_size=8, vocab_size=11
    )
    model = transformers.BertForSequenceClassification(config).eval()
    made = save_bundle(fuse(model, plan), tmp_path / "out", tensors_only=True)
    (entry,) = re.findall(r'^"plan.json": (\{.*\})$', text, flags=re.M)
    assert made.manifest["files"]["plan.json"] == json.loads(entry)
    (calibration,) = re.findall(r"^```text\n(\{\n.*?^\}\n)```$", text, flags=re.M | re.S)
    assert made.file("calibration.json").read_text() == calibration
    assert made.manifest["files"]["calibration.json"]["sha256"] in text
    weight = load_file(made.file("fused.safetensors"))["layers.0.attention.qkv.weight"]  # heads are 2 wide
    attention = model.bert.encoder.layer[0].attention.self
    for member, rows in enumerate(([0, 1, 6, 7], [0, 1, 2, 3])):
        parts = (attention.query, attention.key, attention.value)
        kept = [part.weight[rows].T.detach().numpy() for part in parts]
        assert np.array_equal(weight[member], np.concatenate(kept, axis=1))


@pytest.mark.parametrize("family", ["electra", "dinov2", "modernbert"])
def test_tensors_of_the_weights(family: str, tmp_path: Path) -> None:
    plan = random_plan(family, MEMBERS)
    bundle = save_bundle(fuse(make_model(family), plan), tmp_path / "out", tensors_only=True)
    config = json.loads((bundle.path / "config.json").read_bytes())
    d, inner, patch = config["width"], config["mlp_width"], config["patch_height"] * config["patch_width"]
    pooled = (config["pooled_width"] or d) if config["pooling"] != "none" else d
    pooled *= 2 if config.get("token_pooling") == "first_and_mean" else 1
    narrow = config.get("embedding_width") or d
    up = inner * (2 if config.get("gated_mlp") else 1)
    sizes = {"d": d, "e": narrow, "u": up, "mlp width": inner, "C": config["classes"], "P": pooled}
    sizes["channels · patch height · patch width"] = config["channels"] * patch
    rows = {
        name: shapes
        for names, shapes in table("bundle.md", "tensor", "fused.safetensors")
        for name in re.findall(r"`([^`]+)`", names)
        if "PROJECTION" not in name  # adapters: test_lora.py
    }
    counts = [max(len(member[layer]) for member in plan.members) for layer in range(config["layers"])]
    for name, tensor in load_file(bundle.file("fused.safetensors")).items():
        layer = re.match(r"layers\.(\d+)\.", name)
        row = re.sub(r"^layers\.\d+\.", "layers.l.", name)
        assert row in rows, f"{name} is on no row"
        assert tensor.dtype == np.float32
        assert len(tensor) in {1, MEMBERS}
        if name.startswith(("embeddings.word", "embeddings.position", "embeddings.token_type")):
            assert tensor.shape[2] == narrow
            continue
        heads = counts[int(layer[1])] * config["head_width"] if layer else 0
        lengths = {**sizes, "h·d_h": heads, "3·h·d_h": 3 * heads}
        shapes = [part.split(", ") for part in re.findall(r"\[([^\]]+)\]", rows[row])]
        shape = shapes[-1] if name.endswith("bias") else shapes[0]
        assert list(tensor.shape[1:]) == [lengths[size] if size in lengths else int(size) for size in shape], name


def test_inputs_outputs_and_metadata_of_a_graph(bundle: Bundle) -> None:
    content = bundle.file("model.fp32.onnx").read_bytes()
    model = onnx.load_from_string(content)
    assert export_onnx(bundle, form=GraphForm(member_outputs=True)).read_bytes() == content, "not deterministic"
    assert {node.domain for node in model.graph.node} == {""}
    assert len({node.name for node in model.graph.node}) == len(model.graph.node)
    config = json.loads((bundle.path / "config.json").read_bytes())
    sizes = {"channels": config["channels"], "height": config["image_height"], "width": config["image_width"]}
    sizes |= {"classes": config["classes"], "members": MEMBERS}
    types = {onnx.TensorProto.INT64: "int64", onnx.TensorProto.FLOAT: "float32"}

    def told(head: str) -> dict[str, list[Any]]:
        rows = {quoted([row])[0]: re.findall(r"[\w]+", row[-1]) for row in table("graph.md", head)}
        return {name: [sizes.get(axis, axis) for axis in axes] for name, axes in rows.items()}

    def found(values: Any) -> dict[str, list[Any]]:
        return {v.name: [a.dim_param or a.dim_value for a in v.type.tensor_type.shape.dim] for v in values}

    kinds = {quoted([row])[0]: row[1] for row in table("graph.md", "input")}
    assert {v.name: types[v.type.tensor_type.elem_type] for v in model.graph.input}.items() <= kinds.items()
    assert {types[v.type.tensor_type.elem_type] for v in model.graph.output} == {"float32"}
    wanted = {"pixel_values"} if config["modality"] == "image" else {"input_ids", "attention_mask"}
    wanted |= {"token_type_ids"} if bundle.family in ("bert", "electra") else set()
    assert found(model.graph.input) == {name: axes for name, axes in told("input").items() if name in wanted}
    outputs = told("output, always float32")
    assert outputs.pop("distance") == outputs.pop("length_deviation") == ["batch"]
    assert found(model.graph.output) == outputs
    keys = set(quoted(table("graph.md", "key"))) - {"hydrant.density_sha256"}
    assert sorted(entry.key for entry in model.metadata_props) == sorted(keys)
    assert "const.temperature" in {tensor.name for tensor in model.graph.initializer}
    assert (model.ir_version, [item.version for item in model.opset_import]) == (10, [20])


def test_the_distance_in_its_file_and_in_the_graph(calibrated: Bundle) -> None:
    architecture = calibrated.architecture()
    with safe_open(calibrated.file("density.safetensors"), "np") as file:
        facts, tensors = json.loads(file.metadata()["density"]), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    sizes = {"K": len(facts["taps"]), "d": architecture.width, "R": CLASSES, "r": architecture.width, "2": 2}
    rows = [*table("bundle.md", "tensor", "density.safetensors"), *table("bundle.md", "tensor of a length")]
    told = {name: re.findall(r"\w", re.findall(r"\[([^\]]+)\]", row[1])[0]) for row in rows for name in quoted([row])}
    assert {name: list(tensor.shape) for name, tensor in tensors.items()} == {
        name: [sizes[axis] for axis in axes] for name, axes in told.items()
    }
    page = (PAGES / "bundle.md").read_text().partition("## `density.safetensors`")[2]
    assert set(facts) == {name for name in re.findall(r"`(\w+)`", page) if name in facts}
    assert facts["weights_sha256"] == calibrated.digests()["fused.safetensors"]
    model = onnx.load(str(calibrated.file("model.fp32.onnx")))
    assert {"distance", "length_deviation"} < {output.name for output in model.graph.output}
    said = {entry.key: entry.value for entry in model.metadata_props}
    assert said["hydrant.density_sha256"] == calibrated.digests()["density.safetensors"]
    assert {tensor.name for tensor in model.graph.initializer if tensor.name.startswith("distance.")}
