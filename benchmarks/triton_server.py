"""Compare a running Triton server with the predictor, and measure request latency.

    tritonserver --model-repository=repository/ --http-address=127.0.0.1 …
    python benchmarks/triton_server.py out/ --model intents --data test.csv --requests 2000 --clients 1 --clients 8

Clients send one text per request as JSON over HTTP. Labels and flags must equal the predictor's for each single text,
and numbers must be within 1e-5 relative or 1e-6. Status 1 if one differs.
"""

from __future__ import annotations

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

Fields = dict[str, list[Any]]  # Flat answer to one text


def main() -> int:
    parser = harness.parser(__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--model", required=True, help="model name in Triton")
    parser.add_argument("--data", required=True, help="texts, as for `hydrant evaluate`")
    parser.add_argument("--server", default="127.0.0.1:8000", help="HTTP address of Triton")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--clients", type=int, action="append", help="concurrent clients, repeatable (default: 1 8)")
    parser.add_argument("--backend", default="onnxruntime", help="backend of the reference predictor")
    options = parser.parse_args()
    texts = read_examples(options.data, None).inputs
    texts = [texts[place % len(texts)] for place in range(options.requests)]
    with hydrant.load(options.bundle, options.backend, threads=1) as predictor:
        begun = time.perf_counter()
        expected = [fields(predictor, text) for text in texts]
        print(f"predictor, one by one: {(time.perf_counter() - begun) / len(texts) * 1e3:.2f} ms per text")
    thread, wrong, rows = local(), 0, []

    def ask(text: Any) -> tuple[Fields, float]:
        if not hasattr(thread, "connection"):
            thread.connection = http.client.HTTPConnection(options.server, timeout=120)
        pair = {"text": text} if isinstance(text, str) else dict(zip(("text", "text_pair"), text, strict=True))
        inputs = [{"name": name, "datatype": "BYTES", "shape": [1, 1], "data": [part]} for name, part in pair.items()]
        begun = time.perf_counter()
        thread.connection.request("POST", f"/v2/models/{options.model}/infer", json.dumps({"inputs": inputs}))
        answer = thread.connection.getresponse()
        body = json.loads(answer.read())
        if answer.status != 200:
            raise SystemExit(f"Triton answers {answer.status}: {body}")
        return {entry["name"]: entry["data"] for entry in body["outputs"]}, time.perf_counter() - begun

    for clients in options.clients or [1, 8]:
        with ThreadPoolExecutor(clients) as pool:
            begun = time.perf_counter()
            answers, seconds = zip(*pool.map(ask, texts), strict=True)
            rate = len(texts) / (time.perf_counter() - begun)
        compared = [differs(got, want) for got, want in zip(answers, expected, strict=True)]
        differing, largest = sum(wrong for wrong, _ in compared), max(most for _, most in compared)
        wrong += differing
        middle, slow = np.percentile(seconds, [50, 99]) * 1e3
        rows.append({"clients": clients, "rate": rate, "p50_ms": middle, "p99_ms": slow, "differing": differing})
        print(
            f"{clients:3d} clients: {rate:.0f} requests/s, median {middle:.1f} ms, p99 {slow:.1f} ms; "
            f"{differing} of {len(texts)} answers differ, largest difference {largest:.1e}"
        )
        harness.save(options.output, {**harness.about({"requests": len(texts)}), "rows": rows})
    return 1 if wrong else 0


def fields(predictor: hydrant.Predictor, text: Any) -> Fields:
    arrays = predictor.predict([text]).arrays
    if "label" in arrays:
        arrays["label_index"] = arrays["label"]
        arrays["label"] = np.array([predictor.labels[label] for label in arrays["label"]])
    return {name: array.reshape(-1).tolist() for name, array in arrays.items()}


def differs(got: Fields, want: Fields) -> tuple[bool, float]:
    """Return True if an answer differs, and the largest difference of a number, relative beyond 1."""
    same, largest = set(got) == set(want), 0.0
    for name in set(got) & set(want):
        if isinstance(want[name][0], float):
            theirs, ours = np.array(got[name]), np.array(want[name])
            largest = max(largest, float((np.abs(theirs - ours) / np.maximum(1, np.abs(ours))).max()))
            same &= bool(np.allclose(theirs, ours, rtol=RELATIVE, atol=ABSOLUTE))
        else:
            same &= got[name] == want[name]
    return not same, largest


if __name__ == "__main__":
    raise SystemExit(main())
