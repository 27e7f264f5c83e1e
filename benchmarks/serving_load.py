"""Load test of ``hydrant serve``: answers over every protocol equal the predictor's for each single input.

    python benchmarks/serving_load.py --requests 100000

Clients send one to four texts over REST (JSON, binary tensors, ``/predict``) and gRPC, while versions are swapped,
clients disconnect, and invalid requests arrive. Each answer is compared with ``Predictor.predict`` of its version, one
input at a time. ``models/`` contains text bundles as NAME/VERSION/ (default: two versions of a tiny random model).
Status 1 if an answer is wrong, missing, or unexpectedly rejected.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock
from typing import Any

import harness
import hydrant
import numpy as np
from hydrant.serving.grpc_front import SERVICE, message_classes
from hydrant.serving.oip import HEADER
from serving_systems import service

FRONTS = ("json", "binary", "grpc", "predict")
TOLERANCE = 1e-6
LEAVES, NONSENSE = 0.01, 0.01  # Shares of abandoned and of invalid requests; neither counts as an answer
SCORES = ("confidence", "predictive_entropy", "expected_entropy", "mutual_information", "disagreement", "energy")
OUTPUTS = ("label_index", "probabilities", *SCORES)
WORDS = ("transfer", "money", "today", "what", "is", "the", "weather", "hello", "world")
NONSENSICAL = (
    b"{", b"[" * 3000, b'{"inputs": [{}]}', b'{"inputs": [{"name": "text", "shape": [9], "datatype": "BYTES"}]}',
)  # fmt: skip
TYPES = {"INT64": "<i8", "FP32": "<f4"}

Answer = tuple[str, dict[str, Any]]  # Version, and outputs by name


def texts_of_many_lengths(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.choice([1, 2, 3, 5, 8, 13, 21, 34]))) for _ in range(count)]


def one_by_one(bundle: Path, texts: list[str]) -> dict[str, np.ndarray]:
    """Predictor's outputs for each single text, by name."""
    with hydrant.load(bundle, threads=1) as predictor:
        prediction = hydrant.Prediction.concatenate([predictor.predict([text]) for text in texts])
    return {name: prediction.label if name == "label_index" else getattr(prediction, name) for name in OUTPUTS}


def tiny_models(folder: Path) -> Path:
    """Two versions of a tiny random model, as in the tests."""
    sys.path.append(str(harness.ROOT / "tests"))
    from hydrant.models.checkpoint import load_processor
    from support import random_plan, save_checkpoint

    for version in (1, 2):
        source = save_checkpoint(folder / f"checkpoint-{version}", seed=version)
        bundle = folder / "models" / "texts" / str(version)
        hydrant.save_bundle(hydrant.fuse(source, random_plan("bert", 3)), bundle, load_processor(source, "text"))
        hydrant.export_onnx(bundle)
    return folder / "models"


class RefusedError(Exception):
    """Status other than 200."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message[:200]}")
        self.status = status


def checked(status: int, body: bytes) -> Any:
    if status != 200:
        raise RefusedError(status, body.decode(errors="replace"))
    return json.loads(body)


class Client:
    """Client of one model, over every protocol."""

    def __init__(self, ready: dict[str, Any], model: str) -> None:
        import grpc

        self._model, self._path = model, f"/v2/models/{model}/infer"
        self.http = http.client.HTTPConnection("127.0.0.1", ready["port"], timeout=60)
        own = [("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.insecure_channel(f"127.0.0.1:{ready['grpc_port']}", own)
        self._infer, self._classes = self.channel.unary_unary(f"/{SERVICE}/ModelInfer"), message_classes()

    def post(self, path: str, body: bytes, header: int | None = None) -> tuple[int, Any, bytes]:
        self.http.request("POST", path, body, {} if header is None else {HEADER: str(header)})
        answer = self.http.getresponse()
        return answer.status, answer.headers, answer.read()

    def json(self, texts: list[str]) -> Answer:
        status, _, body = self.post(self._path, self._json_body(texts))
        message = checked(status, body)
        return message["model_version"], {each["name"]: each["data"] for each in message["outputs"]}

    def _json_body(self, texts: list[str]) -> bytes:
        outputs = [{"name": name} for name in OUTPUTS]
        tensor = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}
        return json.dumps({"inputs": [tensor], "outputs": outputs}).encode()

    def binary(self, texts: list[str]) -> Answer:
        data = b"".join(struct.pack("<I", len(text)) + text.encode() for text in texts)
        tensor: dict[str, Any] = {"name": "text", "datatype": "BYTES", "shape": [len(texts)]}
        tensor["parameters"] = {"binary_data_size": len(data)}
        head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
        status, headers, body = self.post(self._path, head + data, len(head))
        end = int(headers.get(HEADER, len(body)))
        message, outputs = checked(status, body[:end]), {}
        for each in message["outputs"]:
            size = each["parameters"]["binary_data_size"]
            if each["name"] in OUTPUTS:
                outputs[each["name"]] = np.frombuffer(body[end : end + size], TYPES[each["datatype"]])
            end += size
        assert end == len(body)
        return message["model_version"], outputs

    def _grpc_request(self, texts: list[str]) -> bytes:
        message = self._classes["ModelInferRequest"](model_name=self._model)
        tensor = message.inputs.add(name="text", datatype="BYTES", shape=[len(texts)])
        tensor.contents.bytes_contents.extend(text.encode() for text in texts)
        for name in OUTPUTS:
            message.outputs.add(name=name)
        return message.SerializeToString()

    def grpc(self, texts: list[str]) -> Answer:
        import grpc

        try:
            raw = self._infer(self._grpc_request(texts), timeout=60)
        except grpc.RpcError as error:
            status = 503 if error.code() is grpc.StatusCode.UNAVAILABLE else 500
            raise RefusedError(status, f"{error.code().name}: {error.details()}") from error
        message = self._classes["ModelInferResponse"].FromString(raw)
        pairs = zip(message.outputs, message.raw_output_contents, strict=True)
        return message.model_version, {each.name: np.frombuffer(data, TYPES[each.datatype]) for each, data in pairs}

    def predict(self, texts: list[str]) -> Answer:
        body = json.dumps({"inputs": texts, "model": self._model, "probabilities": True}).encode()
        status, _, answer = self.post("/predict", body)
        message = checked(status, answer)
        rows = message["predictions"]
        assert [row["input"] for row in rows] == texts
        outputs: dict[str, Any] = {name: [row[name] for row in rows] for name in SCORES}
        outputs["probabilities"] = [list(row["probabilities"].values()) for row in rows]
        outputs["label_index"] = [list(row["probabilities"]).index(row["label"]) for row in rows]
        return message["version"], outputs

    def leave(self, texts: list[str], rng: random.Random) -> None:
        """Disconnect before the answer: after part of a request, after all of it, or over gRPC."""
        way = rng.randrange(3)
        if way == 2:
            call = self._infer.future(self._grpc_request(texts), timeout=60)
            time.sleep(rng.random() * 0.02)
            call.cancel()
            return
        body = self._json_body(texts)
        self.http.putrequest("POST", self._path)
        self.http.putheader("Content-Length", str(len(body)))
        self.http.endheaders(body[: int(len(body) * (rng.random(), 1.0)[way])])
        time.sleep(rng.random() * 0.02)
        self.http.close()


def difference(outputs: dict[str, Any], expected: dict[str, np.ndarray], places: list[int]) -> float:
    """Largest difference between an answer and the predictor's, relative beyond 1; infinite with another label."""
    arrays = {name: np.asarray(outputs[name]).reshape(expected[name][places].shape) for name in OUTPUTS}
    if not np.array_equal(arrays["label_index"], expected["label_index"][places]):
        return float("inf")
    pairs = [(arrays[name], expected[name][places]) for name in OUTPUTS[1:]]
    return max(float((np.abs(one - other) / np.maximum(1, np.abs(other))).max()) for one, other in pairs)


@dataclass
class Load:
    """Requests of many clients at once, while versions are swapped; and their outcome."""

    ready: dict[str, Any]  # ports of the service
    model: str  # name of the model
    texts: list[str]  # each request contains one to four
    expected: dict[str, dict[str, np.ndarray]]  # version → outputs of each single text
    wanted: int  # minimum answers, with at least two swaps of versions
    swap: int  # answers between two swaps of versions
    answers: Counter[str] = field(default_factory=Counter)
    versions: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    largest: float = 0.0
    ended: Event = field(default_factory=Event)
    lock: Any = field(default_factory=Lock)

    def run(self, clients: int) -> Load:
        """Send requests from concurrent clients."""
        with ThreadPoolExecutor(clients + 1) as pool:
            swapping = pool.submit(self._swap)
            try:
                for done in [pool.submit(self._client, number) for number in range(clients)]:
                    done.result()
            finally:
                self.ended.set()
            if error := swapping.exception():
                self.wrong.append(f"swapping ended: {error}")
        return self

    def _is_wanted(self) -> bool:
        missing = self.answers.total() + len(self.wrong) < self.wanted
        return not self.ended.is_set() and (missing or self.counts["swaps of versions"] < 2)

    def _client(self, number: int) -> None:
        rng, client = random.Random(number), Client(self.ready, self.model)
        with client.channel, contextlib.closing(client.http):
            while self._is_wanted():
                places = [rng.randrange(len(self.texts)) for _ in range(rng.choice([1, 1, 1, 2, 4]))]
                texts = [self.texts[place] for place in places]
                chance = rng.random()
                if chance < LEAVES:
                    client.leave(texts, rng)
                    self._count("clients that left")
                elif chance < LEAVES + NONSENSE:
                    status, _, _ = client.post(f"/v2/models/{self.model}/infer", rng.choice(NONSENSICAL))
                    self._count("nonsense refused" if status == 400 else "nonsense taken")
                    self.wrong += [f"nonsense was answered with {status}"] * (status != 400)
                else:
                    self._ask(client, rng.choice(FRONTS), texts, places)

    def _count(self, name: str) -> None:
        with self.lock:
            self.counts[name] += 1

    def _ask(self, client: Client, front: str, texts: list[str], places: list[int]) -> None:
        """Send one request until it is answered, and compare the answer."""
        while True:
            try:
                version, outputs = getattr(client, front)(texts)
                delta = difference(outputs, self.expected[version], places)
                break
            except Exception as error:  # any error leaves the request without an answer
                if getattr(error, "status", None) != 503:
                    self.wrong.append(f"{front}: {type(error).__name__} {error}")
                    client.http.close()
                    return
                self._count("asked again after 503")
                time.sleep(0.05)
        with self.lock:
            self.answers[front] += 1
            self.versions[version] += 1
            self.largest = max(self.largest, delta)
            self.wrong += [f"{front}: differs by {delta} from version {version} of {texts}"] * (delta > TOLERANCE)

    def _swap(self) -> None:
        client, versions = Client(self.ready, self.model), sorted(self.expected)
        while not self.ended.is_set():
            before = self.answers.total()
            while self.answers.total() < before + self.swap and not self.ended.wait(0.001):
                pass
            version = versions[self.counts["swaps of versions"] % len(versions)]
            body = json.dumps({"parameters": {"version": version}}).encode()
            status, _, answer = client.post(f"/v2/repository/models/{self.model}/load", body)
            checked(status, answer)
            self._count("swaps of versions")

    def facts(self) -> dict[str, Any]:
        return {
            "answers": self.answers.total(), "by front": dict(sorted(self.answers.items())),
            "by version": dict(sorted(self.versions.items())), "wrong or missing": len(self.wrong),
            "largest difference": float(f"{self.largest:.2g}"), **self.counts,
        }  # fmt: skip


@contextlib.contextmanager
def served(models: Path, queue: int) -> Iterator[dict[str, Any]]:
    """Ports of ``hydrant serve``, which must exit with status 0."""
    with service(models, "--grpc-port", "0", "--queue", str(queue)) as running:
        yield running.ready
    assert running.process.returncode == 0, "the service failed at shutdown"


def load(models: Path, requests: int, clients: int = 32, swap: int = 1500, queue: int = 1024) -> Load:
    """Serve a folder of bundles, query its first model, and compare; retry if the queue is full."""
    model = min(each for each in models.iterdir() if each.is_dir())
    texts = texts_of_many_lengths(300)
    expected = {each.name: one_by_one(each, texts) for each in sorted(model.iterdir())}
    with served(models, queue) as ready:
        return Load(ready, model.name, texts, expected, requests, swap).run(clients)


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("models", nargs="?", type=Path)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--swap", type=int, default=1500, metavar="ANSWERS")
    parser.add_argument("--queue", type=int, default=1024)
    options = parser.parse_args()
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        models = options.models or tiny_models(Path(scratch))
        outcome = load(models, options.requests, options.clients, options.swap, options.queue)
    facts = {**outcome.facts(), "seconds": round(time.perf_counter() - begun, 1)}
    print(json.dumps(facts, indent=1))
    harness.save(options.output, facts)
    for each in outcome.wrong[:10]:
        print(each, file=sys.stderr)
    return bool(outcome.wrong)


if __name__ == "__main__":
    sys.exit(main())
