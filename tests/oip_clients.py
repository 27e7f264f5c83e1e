"""Requests to a running service by tritonclient and KServe's client, in their own environment (clients.txt).

    python oip_clients.py triton|kserve|runner < ask.json > answers.json

Each runs in a separate process, because both define messages of the same names. ``runner`` is tritonclient over HTTP
with the C++ runner: ``http``, ``model``, ``tensors`` (lists by name) and ``outputs``. ``ask.json`` of the others:
``http`` and ``grpc`` (host:port), ``texts``, ``image`` (base64), and the names of both models. ``answers.json`` has one
entry for each client and form: the outputs as lists, by name.
"""

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
"""Imports of KServe's package for its server and Kubernetes, unused by its client."""


def plain(result: Any, names: list[str]) -> dict[str, Any]:
    """Outputs of a result as lists; bytes as text."""
    arrays = {name: result.as_numpy(name) for name in names}
    return {
        name: [item.decode() if isinstance(item, bytes) else item for item in array.tolist()]
        for name, array in arrays.items()
    }


def refusal(work: Callable[[], Any]) -> list[str]:
    """Status and message of the error that tritonclient raises."""
    from tritonclient.utils import InferenceServerException

    try:
        work()
    except InferenceServerException as error:
        return [str(error.status()), str(error.message())]
    return ["", "nothing was refused"]


def triton_answers(ask: dict[str, Any], over: str) -> dict[str, Any]:
    """Answers over one transport of tritonclient, http or grpc."""
    module, http = importlib.import_module(f"tritonclient.{over}"), over == "http"
    answers: dict[str, Any] = {}
    with module.InferenceServerClient(ask[over]) as client:
        text, image = ask["text_model"], ask["image_model"]
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready(text, "1")
        options = {} if http else {"as_json": True}
        answers[f"triton {over} server"] = client.get_server_metadata(**options)
        answers[f"triton {over} model"] = client.get_model_metadata(text, **options)
        index = client.get_model_repository_index(**options)
        answers[f"triton {over} index"] = index if http else index["models"]

        def text_input(name: str, values: list[Any], **form: bool) -> Any:
            tensor = module.InferInput(name, [len(values)], "BYTES")
            tensor.set_data_from_numpy(np.array(values, np.object_), **form)
            return tensor

        def output(name: str, **form: Any) -> Any:
            return module.InferRequestedOutput(name, **form)

        def infer(inputs: list[Any], model: str = text, **more: Any) -> Any:
            return client.infer(model, inputs, **more)

        forms = {"json": False, "binary": True} if http else {"raw": None}
        for word, binary in forms.items():
            form = {} if binary is None else {"binary_data": binary}
            outputs = [output(name, **form) for name in ask["outputs"]]
            result = infer(
                [text_input("text", ask["texts"], **form)], outputs=outputs, request_id="7", timeout=20_000_000
            )
            answers[f"triton {over} {word}"] = plain(result, ask["outputs"])
            head = result.get_response() if http else result.get_response(as_json=True)
            answers[f"triton {over} {word} head"] = [head["model_name"], head["model_version"], head["id"]]
        # defaults: binary inputs, all outputs
        answers[f"triton {over} default"] = plain(infer([text_input("text", ask["texts"])]), ask["outputs"])
        picture = [base64.b64decode(ask["image"])]
        answers[f"triton {over} image"] = plain(infer([text_input("image", picture)], image), ask["outputs"])
        ids = module.InferInput("input_ids", [1, 3], "INT64")
        ids.set_data_from_numpy(np.array([[2, 7, 3]]))
        mask = module.InferInput("attention_mask", [1, 3], "INT64")
        mask.set_data_from_numpy(np.ones((1, 3), np.int64))
        answers[f"triton {over} ready tensors"] = plain(infer([ids, mask]), ask["outputs"])

        good = [text_input("text", ["hello"])]
        classes = [output("probabilities", class_count=2)]
        refused = {
            "model": lambda: client.infer("nobody", good),
            "version": lambda: client.infer(text, good, model_version="9"),
            "input": lambda: infer([text_input("words", ["hello"])]),
            "output": lambda: infer(good, outputs=[output("scores")]),
            "classification": lambda: infer(good, outputs=classes),
            "sequence": lambda: infer(good, sequence_id=5, sequence_start=True),
            "empty": lambda: infer([text_input("text", [""])]),
            "config": lambda: client.load_model(text, config="{}"),
        }
        answers[f"triton {over} refused"] = {name: refusal(work) for name, work in refused.items()}
        client.unload_model(image)
        assert refusal(lambda: client.get_model_metadata(image))[0] != ""
        client.load_model(image)
        assert client.is_model_ready(image)
    return answers


def runner_answers(ask: dict[str, Any]) -> dict[str, Any]:
    """Answers of the C++ runner to tritonclient over HTTP."""
    from tritonclient import http

    model, answers = ask["model"], {}
    with http.InferenceServerClient(ask["http"]) as client:
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready(model, "1")
        answers["server"], answers["model"] = client.get_server_metadata(), client.get_model_metadata(model)

        def infer(binary: bool, **more: Any) -> Any:
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
            answers["binary" if binary else "json"] = plain(infer(binary, outputs=outputs), ask["outputs"])
        answers["default"] = plain(infer(True), ask["outputs"])  # defaults: all outputs
        answers["refused"] = refusal(lambda: infer(True, outputs=[output("scores", True)]))
    return answers


def kserve() -> Any:
    """KServe's client, without its package's other imports."""
    for name in SERVER_SIDE:
        sys.modules[name] = MagicMock()
    spec = importlib.util.find_spec("kserve")
    package = types.ModuleType("kserve")
    package.__path__ = list(spec.submodule_search_locations)  # type: ignore[union-attr,arg-type]
    sys.modules["kserve"] = package
    return importlib.import_module("kserve.inference_client"), importlib.import_module("kserve.protocol.infer_type")


async def kserve_answers(ask: dict[str, Any]) -> dict[str, Any]:
    """Answers over both transports of KServe's client."""
    clients, kinds = kserve()
    url, text, answers = f"http://{ask['http']}", ask["text_model"], {}

    def request(binary: bool, **parameters: Any) -> Any:
        tensor = kinds.InferInput("text", [len(ask["texts"])], "BYTES")
        tensor.set_data_from_numpy(np.array(ask["texts"], np.object_), binary_data=binary)
        return kinds.InferRequest(text, [tensor], "8", parameters=parameters)

    def plainly(result: Any) -> dict[str, Any]:
        outputs = {each.name: each.as_numpy() for each in result.outputs}
        return {
            name: [item.decode() if isinstance(item, bytes) else item for item in outputs[name].tolist()]
            for name in ask["outputs"]
        }

    async with clients.InferenceRESTClient(clients.RESTConfig(protocol="v2")) as client:
        assert await client.is_server_live(url) and await client.is_server_ready(url)
        assert await client.is_model_ready(url, text)
        answers["kserve json"] = plainly(await client.infer(url, request(False), model_name=text))
        binary = request(True, binary_data_output=True)
        answers["kserve binary"] = plainly(await client.infer(url, binary, model_name=text))
    async with clients.InferenceGRPCClient(ask["grpc"]) as client:
        assert await client.is_server_live() and await client.is_server_ready() and await client.is_model_ready(text)
        answers["kserve grpc"] = plainly(await client.infer(request(True)))
    return answers


def main() -> None:
    """Send the requests, and print the answers."""
    ask = json.load(sys.stdin)
    if sys.argv[1] == "runner":
        answers = runner_answers(ask)
    elif sys.argv[1] == "triton":
        answers = triton_answers(ask, "http") | triton_answers(ask, "grpc")
    else:
        answers = asyncio.run(kserve_answers(ask))
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
