"""A Triton server that runs, against the predictor: are its answers the same, and what does a request take?

    tritonserver --model-repository=repository/ --http-address=127.0.0.1 …
    python benchmarks/triton_server.py out/ --model intents --data test.csv --requests 2000 --clients 1 --clients 8

Sends texts, one a request, as JSON over HTTP, from one client and from several, and compares every answer with what the
predictor says of that text alone: labels and flags must be equal, numbers within 1e-5 relative or 1e-6. Status 1 where
one differs. It knows nothing of how Triton runs the model, so it judges an ensemble on a GPU as well.
"""

from __future__ import annotations

import argparse
import http.client
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import local
from typing import Any

import harness
import hydrant
import numpy as np
from hydrant.data.examples import read_examples

RELATIVE, ABSOLUTE = 1e-5, 1e-6


def main() -> int:
    options = parse()
    texts = read_examples(options.data, None).inputs
    texts = [texts[place % len(texts)] for place in range(options.requests)]
    with hydrant.load(options.bundle, options.backend, threads=options.threads) as predictor:
        begun = time.perf_counter()
        wanted = [fields(predictor, text) for text in texts]
        print(f"the predictor alone, one by one: {(time.perf_counter() - begun) / len(texts) * 1e3:.2f} ms a text")
    wrong = 0
    for clients in options.clients or [1, 8]:
        found, seconds, each = ask_all(options.server, options.model, texts, clients)
        differing, largest = compare(found, wanted)
        wrong += differing
        middle, slow = np.percentile(each, [50, 99]) * 1e3
        print(
            f"{clients:3d} clients: {len(texts) / seconds:.0f} requests/s, median {middle:.1f} ms, p99 {slow:.1f} ms; "
            f"{differing} of {len(texts)} answers differ, largest difference {largest:.1e}"
        )
    return 1 if wrong else 0


def parse() -> argparse.Namespace:
    parser = harness.parser(__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--model", required=True, help="its name in Triton")
    parser.add_argument("--data", required=True, help="texts, as `hydrant evaluate` takes them")
    parser.add_argument("--server", default="127.0.0.1:8000", help="HTTP address of Triton")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, action="append", help="at once; may be repeated (default: 1 and 8)")
    parser.add_argument("--backend", default="onnxruntime", help="of the predictor that is compared with")
    parser.add_argument("--threads", type=int, default=1, help="of that predictor")
    return parser.parse_args()


def fields(predictor: hydrant.Predictor, text: Any) -> dict[str, list[Any]]:
    """What the answer to one text should be, flat."""
    found = predictor.predict([text]).to_dict()
    if "label" in found:
        found["label_index"] = found["label"]
        found["label"] = np.array([predictor.labels[label] for label in found["label"]])
    return {name: array.reshape(-1).tolist() for name, array in found.items()}


def ask_all(
    server: str, model: str, texts: list[Any], clients: int
) -> tuple[list[dict[str, list[Any]]], float, list[float]]:
    """Answers in the order of the texts, seconds in all, and seconds of each."""
    kept = local()

    def ask(text: Any) -> tuple[dict[str, list[Any]], float]:
        if not hasattr(kept, "connection"):
            kept.connection = http.client.HTTPConnection(server, timeout=120)
        pair = {"text": text} if isinstance(text, str) else dict(zip(("text", "text_pair"), text, strict=True))
        inputs = [{"name": name, "datatype": "BYTES", "shape": [1, 1], "data": [part]} for name, part in pair.items()]
        begun = time.perf_counter()
        kept.connection.request("POST", f"/v2/models/{model}/infer", json.dumps({"inputs": inputs}))
        answer = kept.connection.getresponse()
        body = json.loads(answer.read())
        if answer.status != 200:
            raise SystemExit(f"Triton answers {answer.status}: {body}")
        return {entry["name"]: entry["data"] for entry in body["outputs"]}, time.perf_counter() - begun

    with ThreadPoolExecutor(clients) as pool:
        begun = time.perf_counter()
        done = list(pool.map(ask, texts))
    return [answer for answer, _ in done], time.perf_counter() - begun, [seconds for _, seconds in done]


def compare(found: list[dict[str, list[Any]]], wanted: list[dict[str, list[Any]]]) -> tuple[int, float]:
    """How many answers differ, and the largest difference of a number, relative beyond 1."""
    differing, largest = 0, 0.0
    for got, want in zip(found, wanted, strict=True):
        same = set(got) == set(want)
        for name in set(got) & set(want):
            if isinstance(want[name][0], float):
                there, here = np.array(got[name]), np.array(want[name])
                largest = max(largest, float((np.abs(there - here) / np.maximum(1, np.abs(here))).max()))
                same &= bool(np.allclose(there, here, rtol=RELATIVE, atol=ABSOLUTE))
            else:
                same &= got[name] == want[name]
        differing += not same
    return differing, largest


if __name__ == "__main__":
    raise SystemExit(main())
