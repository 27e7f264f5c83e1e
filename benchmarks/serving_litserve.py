"""Bundle behind LitServe, for ``benchmarks/serving.py``: ``python serving_litserve.py BUNDLE PORT BATCH``.

It answers ``POST /predict`` with ``{"inputs": ["a text"]}`` like hydrant serve. Queued requests form a batch without
further waiting; they reach the predicting process by ZeroMQ, LitServe's faster queue.
"""

from __future__ import annotations

import sys
from typing import Any

import hydrant
import litserve


class Bundle(litserve.LitAPI):  # type: ignore[misc]
    def setup(self, device: str) -> None:  # noqa: ARG002
        self.predictor = hydrant.load(sys.argv[1], threads=1)

    def decode_request(self, request):  # type: ignore[no-untyped-def]  # LitServe would read a type as a form's
        (text,) = request["inputs"]
        return text

    def batch(self, inputs: list[Any]) -> list[Any]:
        return inputs

    def predict(self, texts: list[Any]) -> list[dict[str, Any]]:
        return self.predictor.rows(self.predictor.predict(texts, batch_size=len(texts)))

    def unbatch(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return rows

    def encode_response(self, row: dict[str, Any]) -> dict[str, Any]:
        return {"predictions": [row]}


if __name__ == "__main__":
    api = Bundle(max_batch_size=int(sys.argv[3]), batch_timeout=0.0)
    server = litserve.LitServer(api, accelerator="cpu", timeout=60, fast_queue=True)
    server.run(host="127.0.0.1", port=int(sys.argv[2]), generate_client_file=False, log_level="error")
