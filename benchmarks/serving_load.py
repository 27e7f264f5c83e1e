"""Many clients at once over every front of ``hydrant serve``: answers are what the predictor says of each input alone.

    python benchmarks/serving_load.py --requests 100000

Clients ask over REST (JSON, binary tensors, ``/predict``) and gRPC, with one to four texts of mixed lengths each. All
the while versions are swapped, clients leave amid their requests, and nonsense comes. Each answer is compared with
``Predictor.predict`` of its version, made beforehand one input at a time. ``models/`` holds bundles of texts as
NAME/VERSION/; without it, two versions of a tiny model with random weights are made. Exits 1 where an answer was wrong,
missing, or an unexpected refusal.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
from hydrant.serving.grpc_messages import SERVICE, message_classes
from hydrant.serving.messages import HEADER

FRONTS = ("json", "binary", "grpc", "predict")
TOLERANCE = 1e-6
LEAVES, NONSENSE = 0.01, 0.01
"""Share of requests amid which the client leaves, and of those that are nonsense; neither counts as an answer."""
SCORES = ("confidence", "predictive_entropy", "expected_entropy", "mutual_information", "disagreement", "energy")
OUTPUTS = ("label_index", "probabilities", *SCORES)
WORDS = ("transfer", "money", "today", "what", "is", "the", "weather", "hello", "world")
NONSENSICAL = (
    b"{",
    b"[" * 3000,
    b'{"inputs": [{}]}',
    b'{"inputs": [{"name": "text", "shape": [9], "datatype": "BYTES"}]}',
)
TYPES = {"INT64": "<i8", "FP32": "<f4"}


@dataclass
class Report:
    """What came of the requests."""

    answers: Counter[str] = field(default_factory=Counter)
    versions: Counter[str] = field(default_factory=Counter)
    largest: float = 0.0
    wrong: list[str] = field(default_factory=list)
    left: int = 0
    refused: int = 0
    asked_again: int = 0
    swaps: int = 0
    seconds: float = 0.0

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "answers": sum(self.answers.values()),
            "by front": dict(sorted(self.answers.items())),
            "by version": dict(sorted(self.versions.items())),
            "wrong or missing": len(self.wrong),
            "largest difference": float(f"{self.largest:.2g}"),
            "clients that left": self.left,
            "nonsense refused": self.refused,
            "asked again after 503": self.asked_again,
            "swaps of versions": self.swaps,
            "seconds": round(self.seconds, 1),
        }


def texts_of_many_lengths(count: int, seed: int = 0) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.choice([1, 2, 3, 5, 8, 13, 21, 34]))) for _ in range(count)]


def one_by_one(bundle: Path, texts: list[str]) -> dict[str, np.ndarray]:
    """What the predictor says of each text alone, by the names of outputs."""
    with hydrant.load(bundle, threads=1) as predictor:
        found = hydrant.Prediction.concatenate([predictor.predict([text]) for text in texts])
    return {name: found.label if name == "label_index" else getattr(found, name) for name in OUTPUTS}


def tiny_models(folder: Path) -> Path:
    """Two versions of a model of texts with random weights."""
    import torch
    import transformers

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    labels = dict(enumerate("abcde"))
    shape = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
    for version in (1, 2):
        source = folder / f"checkpoint-{version}"
        torch.manual_seed(version)
        config = transformers.BertConfig(
            vocab_size=len(vocabulary), max_position_embeddings=40, initializer_range=0.4, id2label=labels,
            label2id={name: index for index, name in labels.items()}, **shape,
        )  # fmt: skip
        transformers.BertForSequenceClassification(config).save_pretrained(source)
        (source / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
        transformers.BertTokenizer(vocab=str(source / "vocab.txt"), model_max_length=40).save_pretrained(source)
        plan = hydrant.plan_heads(source, members=3, keep=2, method="random", data=None)
        bundle = folder / "models" / "texts" / str(version)
        hydrant.save_bundle(hydrant.fuse(source, plan), bundle, transformers.AutoTokenizer.from_pretrained(source))
        hydrant.export_onnx(bundle)
    return folder / "models"


@contextlib.contextmanager
def served(models: Path, queue: int) -> Iterator[dict[str, Any]]:
    """``hydrant serve`` in a process of its own, on ports of the system's choice; it must end well."""
    words = ["serve", str(models), "--port", "0", "--grpc-port", "0", "--threads", "1", "--queue", str(queue), "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "hydrant", *words], cwd="/", stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.terminate()
            assert process.wait(120) == 0, "the service did not end well"


class Connection:
    """One connection of HTTP/1.1 that is kept, and opened again once it is gone."""

    def __init__(self, port: int) -> None:
        self._port, self._streams = port, None

    _streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None

    async def send(self, path: str, body: bytes, header: int | None = None, share: float = 1.0) -> asyncio.StreamReader:
        """Send a request, or a share of its body."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        more = "" if header is None else f"{HEADER}: {header}\r\n"
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode()
        writer.write(head + body[: int(len(body) * share)])
        await writer.drain()
        return reader

    async def post(self, path: str, body: bytes, header: int | None = None) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of an answer."""
        reader = await self.send(path, body, header)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        found = await reader.readexactly(int(headers["content-length"]))
        if headers.get("connection", "").lower() == "close":
            self.leave()
        return int(head[0].split()[1]), headers, found

    def leave(self) -> None:
        """Drop the connection, whatever is on its way."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


class RefusedError(Exception):
    """A status other than 200."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message[:200]}")
        self.status = status


Answer = tuple[str, dict[str, np.ndarray]]
"""The version that answered, and the outputs by name."""


class Client:
    """One client that asks over every front in turn.

    Args:
        ready: what the service told of itself.
        model: that is asked.
    """

    def __init__(self, ready: dict[str, Any], model: str) -> None:
        import grpc

        self._model, self._path = model, f"/v2/models/{model}/infer"
        self.http = Connection(ready["port"])
        own = [("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{ready['grpc_port']}", own)
        self._infer, self._made = self.channel.unary_unary(f"/{SERVICE}/ModelInfer"), message_classes()

    async def json(self, texts: list[str]) -> Answer:
        status, _, found = await self.http.post(self._path, self.json_body(texts))
        message = checked(status, found)
        return message["model_version"], {each["name"]: each["data"] for each in message["outputs"]}

    def json_body(self, texts: list[str]) -> bytes:
        """A request in JSON."""
        outputs = [{"name": name} for name in OUTPUTS]
        tensor = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}
        return json.dumps({"inputs": [tensor], "outputs": outputs}).encode()

    async def binary(self, texts: list[str]) -> Answer:
        data = b"".join(struct.pack("<I", len(text)) + text.encode() for text in texts)
        tensor = {
            "name": "text",
            "datatype": "BYTES",
            "shape": [len(texts)],
            "parameters": {"binary_data_size": len(data)},
        }
        head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
        status, headers, found = await self.http.post(self._path, head + data, len(head))
        end = int(headers.get(HEADER.lower(), len(found)))
        message = checked(status, found[:end])
        outputs = {}
        for each in message["outputs"]:
            size = each["parameters"]["binary_data_size"]
            if each["name"] in OUTPUTS:
                outputs[each["name"]] = np.frombuffer(found[end : end + size], TYPES[each["datatype"]])
            end += size
        assert end == len(found)
        return message["model_version"], outputs

    def grpc_call(self, texts: list[str]) -> Any:
        """A call that is on its way."""
        message = self._made["ModelInferRequest"](model_name=self._model)
        tensor = message.inputs.add(name="text", datatype="BYTES", shape=[len(texts)])
        tensor.contents.bytes_contents.extend(text.encode() for text in texts)
        for name in OUTPUTS:
            message.outputs.add(name=name)
        return self._infer(message.SerializeToString(), timeout=60)

    async def grpc(self, texts: list[str]) -> Answer:
        import grpc

        try:
            raw = await self.grpc_call(texts)
        except grpc.aio.AioRpcError as error:
            status = 503 if error.code() is grpc.StatusCode.UNAVAILABLE else 500
            raise RefusedError(status, f"{error.code().name}: {error.details()}") from error
        message = self._made["ModelInferResponse"].FromString(raw)
        pairs = zip(message.outputs, message.raw_output_contents, strict=True)
        return message.model_version, {each.name: np.frombuffer(data, TYPES[each.datatype]) for each, data in pairs}

    async def predict(self, texts: list[str]) -> Answer:
        body = json.dumps({"inputs": texts, "model": self._model, "probabilities": True}).encode()
        status, _, found = await self.http.post("/predict", body)
        message = checked(status, found)
        rows = message["predictions"]
        assert [row["input"] for row in rows] == texts
        outputs = {name: np.array([row[name] for row in rows]) for name in SCORES}
        outputs["probabilities"] = np.array([list(row["probabilities"].values()) for row in rows])
        return message["version"], {
            **outputs,
            "label_index": np.array([list(row["probabilities"]).index(row["label"]) for row in rows]),
        }

    async def leave(self, texts: list[str], rng: random.Random) -> None:
        """Ask, and go before the answer comes: with a part of the request sent, with all of it, or over gRPC."""
        way = rng.randrange(3)
        if way == 2:
            call = self.grpc_call(texts)
            await asyncio.sleep(rng.random() * 0.02)
            call.cancel()
            return
        await self.http.send(self._path, self.json_body(texts), share=(rng.random(), 1.0)[way])
        await asyncio.sleep(rng.random() * 0.02)
        self.http.leave()


def checked(status: int, body: bytes) -> Any:
    if status != 200:
        raise RefusedError(status, body.decode(errors="replace"))
    return json.loads(body)


def difference(outputs: dict[str, Any], expected: dict[str, np.ndarray], places: list[int]) -> float:
    """The largest one of an answer from what the predictor says of its inputs alone, relative beyond 1.

    Of another label it is infinite.
    """
    found = {name: np.asarray(outputs[name]).reshape(expected[name][places].shape) for name in OUTPUTS}
    if not np.array_equal(found["label_index"], expected["label_index"][places]):
        return float("inf")
    pairs = [(found[name], expected[name][places]) for name in OUTPUTS[1:]]
    return max(float((np.abs(one - other) / np.maximum(1, np.abs(other))).max()) for one, other in pairs)


@dataclass
class Load:
    """Requests of many clients at once, while versions are swapped.

    Attributes:
        ready: what the service told of itself.
        model: that is asked.
        texts: of which each request takes one to four.
        expected: version → outputs of each text alone.
        left: answers that are still wanted.
        swap: answers between two swaps of versions, of which there are two at least.
        tell: told of the number of answers, every thousand of them.
    """

    ready: dict[str, Any]
    model: str
    texts: list[str]
    expected: dict[str, dict[str, np.ndarray]]
    left: int
    swap: int
    tell: Callable[[int], None]
    report: Report = field(default_factory=Report)

    async def run(self, clients: int) -> Report:
        """Ask with so many clients at once."""
        wanted, started = self.left, time.perf_counter()
        swapping = asyncio.create_task(self._swap())

        def is_wanted() -> bool:
            return self.left > 0 or (self.report.swaps < 2 and not swapping.done())

        await asyncio.gather(*(self._client(number, is_wanted) for number in range(clients)))
        self.report.seconds = time.perf_counter() - started
        if swapping.done():
            self.report.wrong.append(f"swapping ended: {swapping.exception()}")
        swapping.cancel()
        count = sum(self.report.answers.values())
        self.report.wrong += [f"{count} answers of {wanted}"] * (count < wanted)
        return self.report

    async def _client(self, number: int, is_wanted: Callable[[], bool]) -> None:
        rng, mine = random.Random(number), Client(self.ready, self.model)
        async with mine.channel:
            while is_wanted():
                places = [rng.randrange(len(self.texts)) for _ in range(rng.choice([1, 1, 1, 2, 4]))]
                given = [self.texts[place] for place in places]
                chance = rng.random()
                if chance < LEAVES:
                    await mine.leave(given, rng)
                    self.report.left += 1
                elif chance < LEAVES + NONSENSE:
                    await self._nonsense(mine, rng.choice(NONSENSICAL))
                else:
                    self.left -= 1
                    await self._ask(mine, rng.choice(FRONTS), given, places)
            mine.http.leave()

    async def _nonsense(self, client: Client, body: bytes) -> None:
        try:
            status, _, _ = await client.http.post(f"/v2/models/{self.model}/infer", body)
        except (OSError, EOFError) as error:
            status = 0
            self.report.wrong.append(f"nonsense: {type(error).__name__} {error}")
            client.http.leave()
        self.report.refused += status == 400
        self.report.wrong += [f"nonsense was answered with {status}"] * (status != 400)

    async def _ask(self, client: Client, front: str, given: list[str], places: list[int]) -> None:
        """One request, until it is answered, and the comparison of its answer."""
        try:
            while True:
                try:
                    version, outputs = await getattr(client, front)(given)
                    break
                except RefusedError as error:
                    if error.status != 503:
                        raise
                    self.report.asked_again += 1
                    await asyncio.sleep(0.05)
            found = difference(outputs, self.expected[version], places)
        except Exception as error:  # whatever happened, this request has no answer
            self.report.wrong.append(f"{front}: {type(error).__name__} {error}")
            client.http.leave()
            return
        self._note(front, version, found, given)

    def _note(self, front: str, version: str, found: float, given: list[str]) -> None:
        report = self.report
        report.answers[front] += 1
        report.versions[version] += 1
        if found <= TOLERANCE:
            report.largest = max(report.largest, found)
        else:
            report.wrong.append(f"{front}: differs by {found} from version {version} of {given}")
        count = sum(report.answers.values())
        if count % 1000 == 0:
            self.tell(count)

    async def _swap(self) -> None:
        connection, versions = Connection(self.ready["port"]), sorted(self.expected)
        while True:
            before = self.report.answers.total()
            while self.report.answers.total() < before + self.swap:
                await asyncio.sleep(0.001)
            version = versions[self.report.swaps % len(versions)]
            body = json.dumps({"parameters": {"version": version}}).encode()
            status, _, found = await connection.post(f"/v2/repository/models/{self.model}/load", body)
            checked(status, found)
            self.report.swaps += 1


def _nobody(count: int) -> None:
    """Told of the number of answers."""


def load(
    models: Path,
    requests: int,
    clients: int = 32,
    swap: int = 1500,
    queue: int = 1024,
    tell: Callable[[int], None] = _nobody,
) -> Report:
    """Serve a folder of bundles, ask it, and compare.

    Args:
        models: NAME/VERSION/, whose first name is asked.
        requests: answers that are wanted; there may be more, until versions were swapped twice.
        clients: that ask at once.
        swap: answers between two swaps of versions.
        queue: most inputs that wait; a request that is refused since it is full is sent again.
        tell: told of the number of answers.
    """
    model = min(each for each in models.iterdir() if each.is_dir())
    texts = texts_of_many_lengths(300)
    expected = {each.name: one_by_one(each, texts) for each in sorted(model.iterdir())}
    with served(models, queue) as ready:
        return asyncio.run(Load(ready, model.name, texts, expected, requests, swap, tell).run(clients))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="?", type=Path)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--swap", type=int, default=1500, metavar="ANSWERS")
    parser.add_argument("--queue", type=int, default=1024)
    options = parser.parse_args()

    def tell(count: int) -> None:
        if count % max(1000, options.requests // 20) == 0:
            print(f"{count} answers", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as scratch:
        models = options.models or tiny_models(Path(scratch))
        report = load(models, options.requests, options.clients, options.swap, options.queue, tell)
    print(json.dumps(report.facts(), indent=1))
    for each in report.wrong[:10]:
        print(each, file=sys.stderr)
    return bool(report.wrong)


if __name__ == "__main__":
    sys.exit(main())
