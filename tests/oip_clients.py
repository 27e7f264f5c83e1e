"""Runs in an environment of its own (clients.txt): what tritonclient and KServe's client make of a running service.

    python oip_clients.py triton|kserve|runner < ask.json > told.json

Each in a process of its own, since both bring messages of one name; ``runner`` is tritonclient over HTTP with the C++
runner, which has one model: ``http``, ``model``, ``tensors`` (lists by name) and ``outputs``.
``ask.json``: ``http`` and ``grpc`` (host:port), ``texts``, ``image`` (base64), and the names of both models. What is
told has one entry for each client and form: the outputs as lists, by name.
"""

from __future__ import annotations

import asyncio
import base64
import importlib.util
import json
import sys
import types
from collections.abc import Callable
from typing import Any
from unittest.mock import MagicMock

import numpy as np

SERVER_SIDE = ("cloudevents", "cloudevents.conversion", "cloudevents.http", "cloudevents.v1", "cloudevents.v1.http",
               "fastapi", "fastapi.responses", "grpc_tools", "pandas", "psutil", "starlette", "starlette.requests",
               "starlette.responses")  # fmt: skip
"""What KServe's package imports for its server and for Kubernetes; its client uses none of it."""


def plain(found: Any, names: list[str]) -> dict[str, Any]:
    """Outputs of a result as lists; bytes as text."""
    arrays = {name: found.as_numpy(name) for name in names}
    return {
        name: [item.decode() if isinstance(item, bytes) else item for item in array.tolist()]
        for name, array in arrays.items()
    }


def refusal(work: Callable[[], Any]) -> list[str]:
    """Status and message of what a client of Triton raises."""
    from tritonclient.utils import InferenceServerException

    try:
        work()
    except InferenceServerException as error:
        return [str(error.status()), str(error.message())]
    return ["", "nothing was refused"]


def triton_told(ask: dict[str, Any], over: str) -> dict[str, Any]:
    """Everything over one transport of tritonclient, http or grpc."""
    module, http = importlib.import_module(f"tritonclient.{over}"), over == "http"
    told: dict[str, Any] = {}
    with module.InferenceServerClient(ask[over]) as client:
        text, image = ask["text_model"], ask["image_model"]
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready(text, "1")
        options = {} if http else {"as_json": True}
        told[f"triton {over} server"] = client.get_server_metadata(**options)
        told[f"triton {over} model"] = client.get_model_metadata(text, **options)
        index = client.get_model_repository_index(**options)
        told[f"triton {over} index"] = index if http else index["models"]

        def given(name: str, values: list[Any], **form: bool) -> Any:
            tensor = module.InferInput(name, [len(values)], "BYTES")
            tensor.set_data_from_numpy(np.array(values, np.object_), **form)
            return tensor

        def output(name: str, **form: Any) -> Any:
            return module.InferRequestedOutput(name, **form)

        def asked(inputs: list[Any], model: str = text, **more: Any) -> Any:
            return client.infer(model, inputs, **more)

        forms = {"json": False, "binary": True} if http else {"raw": None}
        for word, binary in forms.items():
            form = {} if binary is None else {"binary_data": binary}
            outputs = [output(name, **form) for name in ask["outputs"]]
            found = asked([given("text", ask["texts"], **form)], outputs=outputs, request_id="7", timeout=20_000_000)
            told[f"triton {over} {word}"] = plain(found, ask["outputs"])
            head = found.get_response() if http else found.get_response(as_json=True)
            told[f"triton {over} {word} head"] = [head["model_name"], head["model_version"], head["id"]]
        # their defaults: binary inputs, no outputs named, all of them come
        told[f"triton {over} default"] = plain(asked([given("text", ask["texts"])]), ask["outputs"])
        picture = [base64.b64decode(ask["image"])]
        told[f"triton {over} image"] = plain(asked([given("image", picture)], image), ask["outputs"])
        ids = module.InferInput("input_ids", [1, 3], "INT64")
        ids.set_data_from_numpy(np.array([[2, 7, 3]]))
        mask = module.InferInput("attention_mask", [1, 3], "INT64")
        mask.set_data_from_numpy(np.ones((1, 3), np.int64))
        told[f"triton {over} ready tensors"] = plain(asked([ids, mask]), ask["outputs"])

        good = [given("text", ["hello"])]
        classes = [output("probabilities", class_count=2)]
        refused = {
            "model": lambda: client.infer("nobody", good),
            "version": lambda: client.infer(text, good, model_version="9"),
            "input": lambda: asked([given("words", ["hello"])]),
            "output": lambda: asked(good, outputs=[output("logits")]),
            "classification": lambda: asked(good, outputs=classes),
            "sequence": lambda: asked(good, sequence_id=5, sequence_start=True),
            "empty": lambda: asked([given("text", [""])]),
            "config": lambda: client.load_model(text, config="{}"),
        }
        told[f"triton {over} refused"] = {name: refusal(work) for name, work in refused.items()}
        client.unload_model(image)
        assert refusal(lambda: client.get_model_metadata(image))[0] != ""
        client.load_model(image)
        assert client.is_model_ready(image)
    return told


def runner_told(ask: dict[str, Any]) -> dict[str, Any]:
    """What tritonclient makes of the C++ runner, which speaks HTTP and has one model."""
    from tritonclient import http

    model, told = ask["model"], {}
    with http.InferenceServerClient(ask["http"]) as client:
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready(model, "1")
        told["server"], told["model"] = client.get_server_metadata(), client.get_model_metadata(model)

        def asked(binary: bool, **more: Any) -> Any:
            inputs = []
            for name, values in ask["tensors"].items():
                array = np.array(values)
                inputs.append(http.InferInput(name, list(array.shape), "INT64"))
                inputs[-1].set_data_from_numpy(array, binary_data=binary)
            return client.infer(model, inputs, **more)

        def output(name: str, binary: bool) -> Any:
            return http.InferRequestedOutput(name, binary_data=binary)

        for binary in (False, True):
            outputs = [output(name, binary) for name in ask["outputs"]]
            told["binary" if binary else "json"] = plain(asked(binary, outputs=outputs), ask["outputs"])
        told["default"] = plain(asked(True), ask["outputs"])  # no outputs named: all of them come
        told["refused"] = refusal(lambda: asked(True, outputs=[output("logits", True)]))
    return told


def kserve() -> Any:
    """KServe's client, without what its package imports beside it."""
    for name in SERVER_SIDE:
        sys.modules[name] = MagicMock()
    spec = importlib.util.find_spec("kserve")
    package = types.ModuleType("kserve")
    package.__path__ = list(spec.submodule_search_locations)  # type: ignore[union-attr,arg-type]
    sys.modules["kserve"] = package
    return importlib.import_module("kserve.inference_client"), importlib.import_module("kserve.protocol.infer_type")


async def kserve_told(ask: dict[str, Any]) -> dict[str, Any]:
    """Both transports of KServe's client."""
    clients, kinds = kserve()
    url, text, told = f"http://{ask['http']}", ask["text_model"], {}

    def request(binary: bool, **parameters: Any) -> Any:
        tensor = kinds.InferInput("text", [len(ask["texts"])], "BYTES")
        tensor.set_data_from_numpy(np.array(ask["texts"], np.object_), binary_data=binary)
        return kinds.InferRequest(text, [tensor], "8", parameters=parameters)

    def plainly(found: Any) -> dict[str, Any]:
        outputs = {each.name: each.as_numpy() for each in found.outputs}
        return {
            name: [item.decode() if isinstance(item, bytes) else item for item in outputs[name].tolist()]
            for name in ask["outputs"]
        }

    async with clients.InferenceRESTClient(clients.RESTConfig(protocol="v2")) as client:
        assert await client.is_server_live(url) and await client.is_server_ready(url)
        assert await client.is_model_ready(url, text)
        told["kserve json"] = plainly(await client.infer(url, request(False), model_name=text))
        binary = request(True, binary_data_output=True)
        told["kserve binary"] = plainly(await client.infer(url, binary, model_name=text))
    async with clients.InferenceGRPCClient(ask["grpc"]) as client:
        assert await client.is_server_live() and await client.is_server_ready() and await client.is_model_ready(text)
        told["kserve grpc"] = plainly(await client.infer(request(True)))
    return told


def main() -> None:
    """Ask, and tell."""
    ask = json.load(sys.stdin)
    if sys.argv[1] == "runner":
        told = runner_told(ask)
    elif sys.argv[1] == "triton":
        told = triton_told(ask, "http") | triton_told(ask, "grpc")
    else:
        told = asyncio.run(kserve_told(ask))
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main()
