"""Ray: actors and replicas give the same results as one process, even if an actor is killed."""

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import hydrant
import numpy as np
import pytest
import ray_space
from cryptography.hazmat.primitives.asymmetric import ec
from hydrant.bundle.signature import sign
from hydrant.bundle.store import Bundle
from hydrant.runtime.offline.chunks import Chunks
from hydrant.runtime.offline.input_stream import Sources, Survey
from hydrant.runtime.offline.offline_run import Division, local_engine, predict_part
from hydrant.runtime.offline.ray_engine import Scorer, Work
from hydrant.runtime.offline.scoring import Scoring
from support import make_model, make_tokenizer, random_plan, stdout_of
from test_signature import relabel, write_key

WORDS = ["hello", "world", "transfer", "money", "today", "what", "is", "the", "weather"]
ROWS, CHUNK, FINISHED = 1536, 32, 5

needs_ray = pytest.mark.skipif(bool(ray_space.missing()), reason=ray_space.missing())


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ray")
    ensemble = hydrant.fuse(make_model("bert"), random_plan("bert", 2))
    hydrant.export_onnx(hydrant.save_bundle(ensemble, folder / "out", make_tokenizer(folder / "tokenizer")))
    return folder / "out"


PREDICT = """
import os, pathlib, signal, subprocess, sys, time
folder, *words = sys.argv[1:]
before = len(list(pathlib.Path(folder).glob("chunk-*")))
process = subprocess.Popen([sys.executable, "-m", "hydrant", *words])
killed = 0
while process.poll() is None:
    new = len(list(pathlib.Path(folder).glob("chunk-*"))) - before
    if new > 2 and not killed:
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            title = (entry / "cmdline").read_bytes() if entry.exists() else b""
            if title.startswith(b"ray::") and b"Scorer" in title:
                os.kill(int(entry.name), signal.SIGKILL)
                killed = new
                break
    time.sleep(0.005)
print("killed after", killed, "new chunks")
sys.exit(process.returncode)
"""


@needs_ray
def test_actors_continue_the_chunks_of_one_process_and_survive_a_killed_actor(bundle: Path, tmp_path: Path) -> None:
    generator = random.Random(0)
    texts = [" ".join(generator.choices(WORDS, k=generator.randint(1, 9))) for _ in range(ROWS)]
    texts[1234] = " "
    data = tmp_path / "x.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    common = ["predict", bundle, "--input", data, "--batch-size", "2", "--backend", "onnxruntime", "--skip-invalid"]
    places = {name: (tmp_path / f"{name}.csv", tmp_path / f"{name}-bad.jsonl") for name in ("plain", "ray")}
    stdout_of(*common, "--output", places["plain"][0], "--errors", places["plain"][1])

    sources, scoring = Sources.named([str(data)], missing=True), Scoring(batch_size=2, skip_invalid=True)
    division = Division(output=places["ray"][0], errors=places["ray"][1], chunk=CHUNK)

    def some(chunks: Chunks, missing: list[int], survey: Survey) -> Iterator[int]:
        yield from local_engine(predictor, sources, scoring)(chunks, missing[:FINISHED], survey)
        raise KeyboardInterrupt

    with hydrant.load(bundle, "onnxruntime") as predictor, pytest.raises(KeyboardInterrupt):
        predict_part(predictor, bundle, sources, scoring, division, engine=some)

    ray = ["--engine", "ray", "--actors", "2", "--chunk", CHUNK, "--output", places["ray"][0], "--errors",
           places["ray"][1], "--json"]  # fmt: skip
    done = ray_space.run(PREDICT, tmp_path / "ray.csv.chunks", *common, *ray, cwd=tmp_path)
    assert done.returncode == 0, (done.stdout, done.stderr)
    facts, message = done.stdout.splitlines()  # no output of Ray
    chunks = -(-ROWS // CHUNK)
    assert 2 < int(message.split()[2]) < chunks - FINISHED - 3, message
    report = json.loads(facts)
    assert (report["count"], report["failed"], report["chunks"], report["found"]) == (ROWS, 1, chunks, FINISHED)
    for mine, theirs in zip(places["ray"], places["plain"], strict=True):
        assert mine.read_bytes() == theirs.read_bytes()
    own = [line for line in done.stderr.splitlines() if line.startswith("hydrant: ")]  # without Ray's lines
    assert f"WARNING: 1 of {ROWS} inputs" in own[-1] and str(places["ray"][1]) in own[-1]


@pytest.mark.parametrize("trusted", [False, True])
def test_an_actor_refuses_another_bundle(trusted: bool, bundle: Path, tmp_path: Path) -> None:
    """Files and digests can be altered together on one machine; a signature covers both."""
    folder = shutil.copytree(bundle, tmp_path / "out")
    for name in ("other", "maker"):
        public = write_key(tmp_path / f"{name}.key", ec.generate_private_key(ec.SECP256R1()))
    sign(folder, tmp_path / "maker.key")
    (tmp_path / "x.csv").write_text("text\nhello\n")
    sources = Sources.named([str(tmp_path / "x.csv")], missing=True)
    loading = {"backend": "onnxruntime", **({"trust": str(public)} if trusted else {})}
    work = Work(str(folder), Bundle.open(folder).stated(), loading, sources, sources.survey(), Scoring())

    def problem() -> str:
        batch = {"chunk": np.array([0]), "start": np.array([0]), "stop": np.array([1])}
        return Scorer(work)(batch)["problem"][0]

    assert problem() == ""
    if trusted:
        sign(folder, tmp_path / "other.key")
        assert f"is not what the owner of {public} signed" in problem()
        sign(folder, tmp_path / "maker.key")  # below: a file outside the manifest
        (folder / "libevil.so").write_bytes(b"more")
        assert "libevil.so is not listed in hydrant.json" in problem()
        (folder / "libevil.so").unlink()
    relabel(folder)
    assert "; copy it there" in problem()


SERVE = """
import asyncio, json, os, pathlib, signal, subprocess, sys, time
import httpx
bundle, texts = sys.argv[1], json.loads(pathlib.Path(sys.argv[2]).read_text())

def processes(word):
    others = (entry for entry in pathlib.Path("/proc").glob("[0-9]*") if int(entry.name) != os.getpid())
    titles = [entry / "cmdline" for entry in others]
    return sum(word in title.read_bytes() for title in titles if title.exists())

words = ["--engine", "ray", "--replicas", "2", "--port", "8123", "--backend", "onnxruntime", "--json"]
command = [sys.executable, "-m", "hydrant", "serve", bundle, *words]
process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
report = {"ready": json.loads(process.stdout.readline() or "{}"), "replicas": processes(b"ServeReplica")}

async def main():
    async with httpx.AsyncClient(base_url="http://127.0.0.1:8123", timeout=60) as client:
        report["health"] = (await client.get("/v2/health/ready")).status_code
        report["model"] = (await client.get("/v2/models/out")).json()["name"]
        report["load"] = (await client.post("/v2/repository/models/out/load")).status_code
        report["none"] = (await client.get("/v2/models/absent")).status_code
        report["bad"] = (await client.post("/predict", content=b"{")).json()
        ways = asyncio.Semaphore(32)
        async def ask(text):
            async with ways:
                if len(text) % 2:
                    return (await client.post("/predict", json={"inputs": [text]})).json()["predictions"][0]
                tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [text]}
                answer = (await client.post("/v2/models/out/infer", json={"inputs": [tensor]})).json()
                return {each["name"]: each["data"] for each in answer["outputs"]}
        report["answers"] = await asyncio.gather(*map(ask, texts))

try:
    asyncio.run(main())
finally:
    process.send_signal(signal.SIGTERM)
    report["status"] = process.wait(100)
until = time.monotonic() + 30
while processes(b"raylet") and time.monotonic() < until:
    time.sleep(0.2)
report["left"] = processes(b"raylet") + processes(b"ray::")
print(json.dumps(report))
"""


@needs_ray
def test_replicas_answer_by_the_same_protocol(bundle: Path, tmp_path: Path) -> None:
    generator = random.Random(1)
    texts = [" ".join(generator.choices(WORDS, k=generator.randint(1, 9))) for _ in range(96)]
    (tmp_path / "texts.json").write_text(json.dumps(texts))
    done = ray_space.run(SERVE, bundle, tmp_path / "texts.json", cwd=tmp_path)
    assert done.returncode == 0, (done.stdout, done.stderr)
    [line] = done.stdout.splitlines()  # no output of Ray
    report = json.loads(line)
    where = {"scheme": "http", "host": "127.0.0.1", "port": 8123, "grpc_port": None}
    assert report["ready"] == {**where, "workers": 2, "models": {"out": "1"}}
    assert {name: report[name] for name in ("replicas", "health", "model", "none", "load", "status", "left")} == {
        "replicas": 2, "health": 200, "model": "out", "none": 404, "load": 409, "status": 0, "left": 0}  # fmt: skip
    assert "JSON" in report["bad"]["error"]
    with hydrant.load(bundle, "onnxruntime") as predictor:
        rows = predictor.rows(predictor.predict(texts), texts)
    forms = set()
    for mine, theirs in zip(report["answers"], rows, strict=True):
        forms.add("input" in mine)
        if "input" in mine:
            assert (mine["input"], mine["label"]) == (theirs["input"], theirs["label"])
            assert mine["energy"] == pytest.approx(theirs["energy"], abs=5e-6)
        else:
            assert mine["label"] == [theirs["label"]]
            assert mine["energy"] == [pytest.approx(theirs["energy"], abs=5e-6)]
    assert forms == {True, False}
