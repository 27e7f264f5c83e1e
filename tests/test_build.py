"""Build engines with TensorRT-RTX, which needs no GPU to build, and reject invalid options."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import command
import pytest
from hydrant import Bundle, GraphForm, HydrantError, TensorRTForRTX, build_engine, export_onnx, fuse, save_bundle
from hydrant.build import builder_options as library
from hydrant.build.builder_options import optimization_profiles
from hydrant.engines.gpu import this_gpu
from hydrant.engines.metadata import EngineFile, read_metadata
from hydrant.errors import BundleError, InputError
from hydrant.models.family_registry import architecture_of
from support import LAYERS, make_model, random_plan, run_cli, stdout_of

WIDE = {"hidden_size": 128, "intermediate_size": 256}
"""Wide enough for heads of 32, which TensorRT fuses."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundle with graphs in fp32 and fp16; tests that modify it copy it."""
    path = tmp_path_factory.mktemp("built") / "bundle"
    save_bundle(fuse(make_model("bert", **WIDE), random_plan("bert", 3)), path)
    for precision in ("fp32", "fp16"):
        export_onnx(path, precision)
    return path


@pytest.fixture
def own(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "bundle"))


@pytest.fixture
def rtx() -> Any:
    return pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")


def test_an_engine_and_its_metadata(own: Path, rtx: Any) -> None:
    log = own.parent / "build.log"
    built = build_engine(own, "tensorrt-rtx", batch="1:2:4", sequence="4:8:16", log_file=log)
    assert built.path == own / "engines/tensorrt-rtx-fp16.engine"
    bundle = Bundle.open(own)
    facts = read_metadata(bundle, "tensorrt-rtx-fp16")
    assert facts == built.facts
    files = bundle.manifest["files"]
    assert facts.engine_sha256 == files["engines/tensorrt-rtx-fp16.engine"]["sha256"]
    assert (facts.onnx, facts.onnx_sha256) == ("model.fp16.onnx", files["model.fp16.onnx"]["sha256"])
    assert (facts.version, facts.compute_capabilities) == (rtx.__version__, library.RTX_TARGETS)
    assert facts.profiles == (
        dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), ((1, 4), (2, 8), (4, 16))),
    )
    assert (facts.attention_blocks, facts.fused) == (LAYERS, (LAYERS,))
    assert facts.layers[0] > LAYERS
    assert len(built.warnings) == len(set(built.warnings))
    assert all("catchCudaError" not in warning for warning in built.warnings)
    assert "[VERBOSE] " in log.read_text()


def test_float32_fails_require_fused(own: Path, rtx: Any) -> None:
    before = Bundle.open(own).digests()
    words = ("build", own, "--backend", "tensorrt-rtx", "--compute-capability", "8.9", "--precision", "fp32")
    gated = run_cli(*words, "--require-fused")
    assert (gated.returncode, gated.stdout) == (1, "")
    assert f"0 of {LAYERS} attention blocks were fused in profile 0" in gated.stderr
    assert Bundle.open(own).digests() == before
    unfused = build_engine(own, TensorRTForRTX(compute_capability=["8.9"]), "fp32", name="unfused")
    assert unfused.facts.fused == (0,)


@pytest.mark.parametrize(("options", "name"), [
    ({"precision": "int8"}, "'int8'"),
    ({"backend": "onnxruntime"}, "'onnxruntime'"),
    ({"batch": "8:1:32"}, "'8:1:32'"),
    ({"batch": "many"}, "'many'"),
    ({"log_file": "/nowhere/x.log"}, "/nowhere"),
    ({"sequence": "1:8:999"}, "999"),
    ({"sequence": ["1", "2"]}, "2 --sequence ranges"),
    ({"backend": TensorRTForRTX(compute_capability=["9.0"])}, "'9.0'.*Hopper"),
    ({"backend": TensorRTForRTX(compute_capability=["7.5", "8.6"])}, r"7\.5.*Turing"),
    ({"name": "../x"}, "'../x'"),
    ({"precision": "bf16"}, r"model\.bf16\.onnx"),
])  # fmt: skip
def test_unusable_options(options: dict[str, Any], name: str, built: Path, rtx: Any) -> None:
    with pytest.raises(HydrantError, match=name):
        build_engine(built, **{"backend": "tensorrt-rtx", **options})


def test_command_line(own: Path, rtx: Any) -> None:
    options = "--backend tensorrt-rtx --compute-capability 8.9 --batch 1 --batch 1:4:8 --require-fused --json"
    done = stdout_of("build", own, *options.split())
    facts = json.loads(done)
    assert (facts["fused"], facts["compute_capabilities"]) == ([LAYERS, LAYERS], ["8.9"])
    shown = run_cli("inspect", own).stdout
    assert f"engine        tensorrt-rtx-fp16: tensorrt-rtx {rtx.__version__}, fp16, linux-" in shown
    graph = export_onnx(own, "fp16", form=GraphForm(lowering="unrolled"))
    assert "OUTDATED: model.fp16.onnx has changed since" in run_cli("inspect", own).stdout
    graph.write_bytes(graph.read_bytes()[:-1])
    with pytest.raises(HydrantError, match="altered"):
        build_engine(own, "tensorrt-rtx")
    if this_gpu() is None:
        with pytest.raises(InputError, match="--strip-weights"):
            build_engine(own, TensorRTForRTX(strip_weights=True))


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_an_interrupt_stops_the_builder_and_leaves_nothing(number: str, built: Path, rtx: Any) -> None:
    """A signal during compilation stops it and changes nothing."""
    before = Bundle.open(built).digests()
    code = (
        "import os, signal, sys\n"
        "from hydrant.cli import main as cli\n"
        "from hydrant.build.compiler import Phases\n"
        "start = Phases.phase_start\n"
        "def interrupted(self, *arguments):\n"
        f"    os.kill(os.getpid(), signal.{number})\n"
        "    start(self, *arguments)\n"
        "Phases.phase_start = interrupted\n"
        f"sys.exit(cli.main(['build', {str(built)!r}, '--backend', 'tensorrt-rtx', '--name', 'stopped']))\n"
    )
    done = command.run([], os.environ, "/", "", 300, code)
    assert done.returncode == 130, done.stderr
    assert "hydrant: interrupted; nothing was left half-written" in done.stderr
    assert Bundle.open(built).digests() == before


def test_profiles_of_images_and_of_short_models() -> None:
    vit = architecture_of(make_model("vit"))
    (profile,) = optimization_profiles(vit, ["2"], [])
    assert profile == {"pixel_values": ((2, 3, 12, 12),) * 3}
    with pytest.raises(HydrantError, match="--sequence is for text"):
        optimization_profiles(vit, [], ["8"])
    bert = architecture_of(make_model("bert"))
    (profile,) = optimization_profiles(bert, [], [])
    assert profile["input_ids"] == ((1, 8), (8, 40), (32, 40))
    both = optimization_profiles(bert, ["1", "8"], ["4", "16"])
    assert [profile["input_ids"][1] for profile in both] == [(1, 4), (8, 16)]


@pytest.mark.parametrize(("key", "value"), [("schema", 2), ("profiles", [{"a": [[1], [2], [0]]}]), ("extra", 1)])
def test_malformed_metadata_is_rejected(key: str, value: Any) -> None:
    facts = EngineFile(
        "tensorrt", "11.4", "fp16", ({"pixel_values": ((1, 3), (2, 3), (4, 3))},), ("8.9",), "linux-x86_64",
        "model.fp16.onnx", "0" * 64, "1" * 64,
    )  # fmt: skip
    good = json.loads(json.dumps(facts.to_json()))
    assert EngineFile.from_json(good, "metadata") == facts
    with pytest.raises(BundleError, match="`hydrant build`"):
        EngineFile.from_json({**good, key: value}, "metadata")
