"""A bundle that changes: earlier looks at it, interruptions, contradictions, stale reports."""

import json
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import command
import pytest
from hydrant import Bundle, HydrantError, Reading, evaluate, load, load_ensemble, verify
from support import feeds, make_inputs, relabel, run_cli


@pytest.fixture
def exported(text_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(text_bundle, tmp_path / "bundle"))


def forge(bundle: Path, name: str, change: Any) -> None:
    """Change a JSON file of a bundle, and its digest in the manifest with it."""
    content = json.dumps(json.loads((bundle / name).read_text()) | change)
    if name == "hydrant.json":
        (bundle / name).write_text(content)
    else:
        Bundle.open(bundle).add({name: content.encode()})


def test_an_interrupted_export_leaves_the_bundle_usable(exported: Path) -> None:
    """Ctrl-C in the moment between the graph and the manifest: both are written, then it counts."""
    code = (
        "import os, signal, sys, time\n"
        "from hydrant.bundle import staging\n"
        "from hydrant.cli.main import main\n"
        "commit = staging.commit\n"
        "def interrupted(*arguments):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(0.2)\n"
        "    commit(*arguments)\n"
        "staging.commit = interrupted\n"
        f"sys.exit(main(['export', {str(exported)!r}, '--member-outputs']))\n"
    )
    done = command.run([], os.environ, "/", "", 300, code)
    assert done.returncode == 130, done.stderr
    with load(exported, "onnxruntime") as predictor:
        inputs = feeds("bert")
        assert predictor.predict(inputs).member_probabilities is not None
    assert not [file for file in exported.iterdir() if file.name.startswith(".")]


CONTRADICTIONS = [
    ("hydrant.json", {"members": 5}, "bundle claims 5 members and 5 labels, but its plan has 3 members"),
    ("config.json", {"padding_token": 2**63}, "config.json.*padding_token"),
    ("config.json", {"norm_eps": 10**400}, "config.json.*norm_eps"),
    ("config.json", {"classes": 4}, "its model 4 classes"),
    ("config.json", {"vocabulary": 50}, r"weight embeddings\.word has shape \[1, 99, 32\]; expected \[1, 50, 32\]"),
    ("config.json", {"family": "roberta"}, "plan and config.json describe different models"),
    ("config.json", {"pooling": "none"}, r"weights pooler\.bias, pooler\.weight"),
    ("config.json", {"colour": 1}, "config.json.*colour"),
    ("plan.json", {"layers": 2}, "member 0 of the plan has 3 layers; expected 2"),
]


@pytest.mark.parametrize(("name", "change", "message"), CONTRADICTIONS, ids=[m[:40] for _, _, m in CONTRADICTIONS])
def test_files_that_contradict_each_other(name: str, change: dict[str, Any], message: str, exported: Path) -> None:
    forge(exported, name, change)
    with pytest.raises(HydrantError, match=message):
        load_ensemble(exported)


def test_inspect_reports_any_altered_file(exported: Path) -> None:
    name = "model.fp32.onnx"
    (exported / name).write_bytes((exported / name).read_bytes() + b" ")
    done = run_cli("inspect", exported, "--json")
    assert done.returncode == 1, done.stderr
    states = {key: entry["state"] for key, entry in json.loads(done.stdout)["files"].items()}
    assert states.pop(name) == "altered"
    assert set(states.values()) == {"ok"}
    assert "altered" in run_cli("inspect", exported).stdout


THRESHOLD = {"abstain": {"score": "confidence", "side": "below", "value": 0.5}}
OTHER_BUNDLES: dict[str, tuple[Any, str]] = {
    "labels": (
        lambda path: forge(path, "hydrant.json", {"labels": list("bacde")}),
        "has labels 'a', but hydrant.json says 'b'",
    ),
    "temperature": (
        lambda path: forge(path, "calibration.json", {"temperature": 2.5}),
        "has temperature '1.0', but calibration.json says '2.5'",
    ),
    "thresholds": (
        lambda path: forge(path, "calibration.json", {"thresholds": THRESHOLD}),
        "has thresholds '{}', but calibration.json says .*confidence",
    ),
    "conformal": (partial(relabel, conformal='{"method": "lac", "quantile": 0.5}'), "has conformal .*0.5.*says 'None'"),
    "weights": (partial(relabel, weights_sha256="0" * 64), "has weights sha256 '0000"),
}


@pytest.mark.parametrize("name", OTHER_BUNDLES)
def test_a_graph_that_contradicts_its_bundle(name: str, exported: Path) -> None:
    change, words = OTHER_BUNDLES[name]
    arrays = {key: tensor.numpy() for key, tensor in make_inputs("bert").items()}
    change(exported)
    for use in (
        lambda: load(exported, "onnxruntime"),
        lambda: load(exported),
        lambda: load(exported, "openvino"),
        lambda: load(exported, "torch"),
        lambda: evaluate(exported, (arrays, [0, 1, 2, 3]), backend="torch"),
        lambda: verify(exported, "openvino", reading=Reading(examples=4)),
    ):
        with pytest.raises(HydrantError, match=rf"model\.fp32\.onnx {words}"):
            use()
    inspected = run_cli("inspect", exported)
    assert inspected.returncode == 1
    assert "PROBLEM       model.fp32.onnx: unusable" in inspected.stdout
