"""Run the programs in examples/ as their READMEs describe, on small models."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import hydrant
import numpy as np
import peft
import pytest
import torch
import transformers
from environments import own_environment
from PIL import Image
from support import for_this_version, run_python, save_checkpoint

FOLDER = Path(__file__).parents[1] / "examples"


def run(name: str, *arguments: object, given: str = "") -> list[str]:
    """Return the printed lines of an example."""
    program = FOLDER / name / f"{name[3:]}_example.py"
    done = run_python(for_this_version(program.read_text()), *arguments, given=given)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def bundle(bert_checkpoint: Path, text_csv: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bundle of the first example."""
    folder = tmp_path_factory.mktemp("example") / "out"
    lines = run("01_own_checkpoint", bert_checkpoint, text_csv, folder, "hello world", "what is the money")
    assert [line.split("\t")[3] for line in lines] == ["hello world", "what is the money"]
    assert all(0.2 <= float(line.split("\t")[1]) <= 1 for line in lines)
    return folder


def test_every_example_is_listed_and_has_a_short_readme() -> None:
    listed = re.findall(r"^\| \[(\w+)\]", (FOLDER / "README.md").read_text(), flags=re.M)
    assert sorted(listed) == sorted(path.name for path in FOLDER.iterdir() if path.is_dir())
    assert len(listed) == 10
    for name in listed:
        assert len((FOLDER / name / "README.md").read_text().splitlines()) <= 15, name


def test_images(vit_checkpoint: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for index in range(10):
        place = tmp_path / "data" / f"LABEL_{index % 5}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (14, 16, 3), dtype=np.uint8)).save(place / f"{index}.png")
    picture = tmp_path / "data/LABEL_0/0.png"
    (line,) = run("02_images", vit_checkpoint, tmp_path / "data", tmp_path / "out", picture)
    assert line.endswith(f"\t{picture}")


def test_deep_ensemble(bert_checkpoint: Path, tmp_path: Path) -> None:
    other = save_checkpoint(tmp_path / "other", seed=1)
    (line,) = run("03_deep_ensemble", tmp_path / "out", bert_checkpoint, other)
    match = re.fullmatch(r"2 members at (\d\.\d\d) × the operations of one", line)
    assert match
    assert 1 < float(match[1]) <= 2


def test_lora(bert_checkpoint: Path, tmp_path: Path) -> None:
    for index in range(2):
        torch.manual_seed(index)
        base = transformers.AutoModelForSequenceClassification.from_pretrained(bert_checkpoint)
        settings = peft.LoraConfig(r=2, target_modules=["query", "value"], task_type="SEQ_CLS")
        peft.get_peft_model(base, settings).save_pretrained(str(tmp_path / f"adapter{index}"))
    (line,) = run("04_lora", bert_checkpoint, tmp_path / "out", tmp_path / "adapter0", tmp_path / "adapter1")
    assert re.match(r"2 members; \d+ ", line)


def test_abstention(bundle: Path, text_csv: Path, tmp_path: Path) -> None:
    outside = tmp_path / "ood.csv"
    outside.write_text("text\n" + "".join(f"{'weather ' * (1 + index % 7)}is\n" for index in range(30)))
    texts = ["hello world", "the money", "", "weather weather is"]
    lines = run("05_abstention", bundle, text_csv, outside, given="\n".join(texts) + "\n")
    answers = [json.loads(line) for line in lines]
    assert len(answers) == len(texts)
    assert answers.pop(2)["reason"].startswith("input 0 is an empty text")
    for answer in answers:
        assert (answer["label"] is None) == (answer["reason"] in {"out of distribution", "uncertain"})


def test_engine(tmp_path: Path, bundle: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="the extra tensorrt-rtx is not installed")
    folder = shutil.copytree(bundle, tmp_path / "out")
    (line,) = run("06_engine", folder)
    assert re.fullmatch(r"tensorrt-rtx-fp16\.engine: \d of 3 attention blocks fused", line)


def test_pairs(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "model", labels=["LABEL_0", "LABEL_1"])
    table = tmp_path / "pairs.csv"
    rows = ["hello world,the world", "transfer money,hello", "what is the weather,weather today"] * 4
    table.write_text("text,second,label\n" + "".join(f"{row},LABEL_{i % 2}\n" for i, row in enumerate(rows)))
    (line,) = run("08_pairs", folder, table, tmp_path / "out", "hello world", "what is the money")
    assert line.startswith("LABEL_")


def test_mlflow(bundle: Path, text_csv: Path, tmp_path: Path) -> None:
    python = own_environment(Path(__file__).parent / "mlflow.txt")
    folder = shutil.copytree(bundle, tmp_path / "calibrated")
    hydrant.calibrate(folder, text_csv, fit=text_csv, force=True)
    (tmp_path / "site").mkdir()
    (tmp_path / "site/hydrant").symlink_to(Path(hydrant.__file__).parent)
    settings = {
        "PYTHONPATH": str(tmp_path / "site"), "MLFLOW_TRACKING_URI": (tmp_path / "store").as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true", "OMP_NUM_THREADS": "1",
        "PATH": os.environ["PATH"],
    }  # fmt: skip
    texts = ["hello world", "what is the money"]
    done = subprocess.run(
        [python, FOLDER / "09_mlflow/mlflow_example.py", folder, *texts],
        capture_output=True, text=True, check=False, cwd=tmp_path, env=settings,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with hydrant.load(folder, backend="onnxruntime", threads=1) as predictor:
        expected = predictor.rows(predictor.predict(texts))
    for row, wanted in zip(map(json.loads, done.stdout.splitlines()), expected, strict=True):
        assert {"label", "confidence", "mutual_information", "distance", "abstain", "out_of_distribution"} <= set(row)
        assert row == pytest.approx({name: value for name, value in wanted.items() if name != "index"}, abs=1e-5)
    (model,) = (tmp_path / "store").rglob("MLmodel")
    assert '"name": "text"' in model.read_text()
