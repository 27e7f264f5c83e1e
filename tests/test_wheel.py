"""Wheels from the checkout and from the sdist, their contents, a serving image, and newer Pythons."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import httpx
import hydrant
import numpy as np
import pytest
from PIL import Image
from serve_support import command as serving_command
from support import predicted
from test_house import ROOT, SOURCES

CHECKOUT = Path(__file__).parents[1]
LIMIT = 250_000_000
"""Largest size of a serving image's packages in bytes, without pip and compiled files."""

ABSENT = ("accelerate", "datasets", "matplotlib", "onnx", "polygraphy", "scipy", "sklearn", "torch", "transformers")


def built(source: Path, folder: Path, *what: str) -> None:
    """Run the build tool outside the checkout, whose folder ``build/`` would shadow it."""
    command = [sys.executable, "-m", "build", "--no-isolation", *what, "--outdir", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder.parent)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with ``direct/`` (wheel from the checkout) and ``dist/`` (sdist and the wheel from it)."""
    folder = tmp_path_factory.mktemp("wheel")
    left = shutil.ignore_patterns(
        ".git", ".venv*", ".build", ".cache", ".*_cache", "__pycache__", "*.egg-info", "out", "hydrant-demo"
    )
    shutil.copytree(CHECKOUT, folder / "checkout", ignore=left)
    built(folder / "checkout", folder / "dist")
    built(folder / "checkout", folder / "direct", "--wheel")
    return folder


def wheel(folder: Path) -> Path:
    (path,) = folder.glob("*.whl")
    assert path.name == f"hydrant_uq-{hydrant.__version__}-py3-none-any.whl"
    return path


def test_the_sdist_builds_the_same_wheel(dist: Path) -> None:
    direct, through = (zipfile.ZipFile(wheel(dist / name)) for name in ("direct", "dist"))
    assert sorted(direct.namelist()) == sorted(through.namelist())
    for name in direct.namelist():
        assert direct.read(name) == through.read(name), name


def test_the_wheel_contains_the_package_only(dist: Path) -> None:
    names = zipfile.ZipFile(wheel(dist / "dist")).namelist()
    package = {name for name in names if ".dist-info/" not in name}
    modules = {f"hydrant/{path.relative_to(ROOT).as_posix()}" for path in SOURCES.values()}
    page = {f"hydrant/serving/static/{path.name}" for path in (ROOT / "serving" / "static").iterdir()}
    templates = {f"hydrant/serving/triton/templates/{name}.txt" for name in ("README.md", "model.py")}
    assert package == {*modules, *page, *templates, "hydrant/evaluation/report.html.j2", "hydrant/py.typed"}


def test_the_wheel_has_a_bill_of_materials(dist: Path) -> None:
    archive = zipfile.ZipFile(wheel(dist / "dist"))
    (name,) = [name for name in archive.namelist() if "/sboms/" in name]
    assert name == f"hydrant_uq-{hydrant.__version__}.dist-info/sboms/hydrant-uq.cdx.json"
    bill = json.loads(archive.read(name))
    assert (bill["bomFormat"], bill["metadata"]["component"]["version"]) == ("CycloneDX", hydrant.__version__)
    assert f"{name},sha256=" in archive.read(f"hydrant_uq-{hydrant.__version__}.dist-info/RECORD").decode()
    required = {entry["name"] for entry in bill["components"] if entry["scope"] == "required"}
    assert {"numpy", "pillow", "safetensors", "tokenizers", "tqdm"} <= required
    assert "torch" not in required


def test_the_sdist_contains_tests_and_the_cpp_runner(dist: Path) -> None:
    (path,) = (dist / "dist").glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"CMakeLists.txt", "Makefile", "constraints.txt", "constraints-oldest.txt"} <= names
    suffixes = {".cpp", ".h", ".json", ".md", ".npy", ".onnx", ".py", ".safetensors"}
    for folder in ("runtime/cpp", "tests", "examples", "docs"):
        files = {p.relative_to(CHECKOUT).as_posix() for p in (CHECKOUT / folder).rglob("*.*") if p.suffix in suffixes}
        assert files, folder
        assert files <= names, folder


@pytest.fixture(scope="module")
def serving(dist: Path) -> Path:
    """Python of a fresh environment with ``hydrant-uq[onnxruntime]``."""
    return environment(Path(sys.executable), dist / "serving", "onnxruntime", wheel(dist / "dist"))


def environment(python: Path, folder: Path, extra: str, wheel: Path) -> Path:
    """Python of a new environment in ``folder`` with the wheel and an extra."""
    done = subprocess.run([python, "-m", "venv", "--without-pip", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    python = folder / "bin/python"
    first = pip(python, "numpy")
    if first.returncode:
        pytest.skip(f"no package index is reachable: {(first.stderr.strip().splitlines() or ['?'])[-1]}")
    done = pip(python, f"hydrant-uq[{extra}] @ {wheel.as_uri()}")
    assert done.returncode == 0, done.stderr
    return python


def pip(python: Path, wanted: str) -> subprocess.CompletedProcess[str]:
    """Install at the tested versions, with this environment's pip."""
    command = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    command += ["install", "-q", "--retries", "1", "--no-compile"]
    pins = ["-c", CHECKOUT / "constraints.txt", wanted]
    return subprocess.run([*command, *pins], capture_output=True, text=True, check=False)


def run(command: list[object], cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, cwd=cwd, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_serving_image_is_small_and_predicts(
    serving: Path, text_bundle: Path, image_bundle: Path, tmp_path: Path
) -> None:
    """One test, so that parallel workers install the environment once."""
    code = f"import importlib.util as u, sysconfig; print(sysconfig.get_path('purelib'), *map(u.find_spec, {ABSENT}))"
    packages, *specs = run([serving, "-c", code], serving.parent).split()
    assert specs == ["None"] * len(ABSENT)
    size = sum(path.stat().st_size for path in Path(packages).rglob("*") if not path.is_symlink())
    assert size < LIMIT, f"{size / 1e6:.0f} MB"
    command, texts = serving.with_name("hydrant"), ["hello world", "the money"]
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8))
    image.save(tmp_path / "cat.png")
    (tmp_path / "x.csv").write_text("text\n" + "\n".join(texts) + "\n")
    for bundle, inputs, words in ((text_bundle, texts, ["--input", "x.csv"]), (image_bundle, [image], ["cat.png"])):
        expected = predicted(bundle, inputs, "onnxruntime")
        rows = json.loads(run([command, "predict", bundle, *words, "--json"], tmp_path))["predictions"]
        np.testing.assert_allclose([row["confidence"] for row in rows], expected.confidence, atol=1e-6)
    shown = run([command, "inspect", text_bundle], tmp_path)
    assert "graph         model.fp32.onnx: precision fp32;" in shown
    assert "PROBLEM" not in shown


PIPELINE = """
import sys, hydrant
with hydrant.pipeline(*sys.argv[1:2], backend="onnxruntime") as classify:
    print(classify(sys.argv[2])[0]["score"])
"""


def interpreter(version: str) -> Path:
    """A Python of this version: on the PATH, or installed by pyenv or uv; the test is skipped without one."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR", Path.home() / ".local/share/uv/python"))
    installed = [path for root in (pyenv, uv) for path in root.glob(f"*{version}.*/bin/python{version}")]
    for python in filter(None, [shutil.which(f"python{version}"), *sorted(installed)]):
        done = subprocess.run([python, "-c", "import ctypes, ssl, venv"], capture_output=True, check=False)
        if done.returncode == 0:  # pyenv has commands on the PATH for versions that are not active
            return Path(python)
    pytest.skip(f"Python {version} is neither on the PATH nor installed by pyenv or uv")


@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_newer_pythons_predict_and_serve(
    version: str, dist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = environment(interpreter(version), tmp_path / "env", "serve", wheel(dist / "dist"))
    bundle, text = CHECKOUT / "tests/bundles_0_1_0/text", "hello world"
    expected = predicted(bundle, text, "onnxruntime").confidence[0]
    done = run([python.with_name("hydrant"), "predict", bundle, text, "--json"], tmp_path)
    scores = [
        json.loads(done)["predictions"][0]["confidence"],
        float(run([python, "-c", PIPELINE, bundle, text], tmp_path)),
    ]
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with serving_command(bundle, python=python) as (_, ready):
        answer = httpx.post(f"http://127.0.0.1:{ready['port']}/predict", json={"inputs": [text]}).json()
    scores.append(answer["predictions"][0]["confidence"])
    np.testing.assert_allclose(scores, expected, atol=1e-6)
