"""Requests and answers of the Open Inference Protocol ↔ the bytes of REST: JSON, with binary tensors behind it.

The binary tensor extension (Triton, KServe): the header ``Inference-Header-Content-Length`` says where the JSON ends;
behind it stand the data of those tensors that have ``binary_data_size``, in their order.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import cut, is_whole, listing
from .datatypes import Tensor, checked_head, from_bytes, from_values, to_bytes, to_values
from .errors import ServeError
from .json_body import read_object

SIZE = "binary_data_size"
HEADER = "Inference-Header-Content-Length"
MOST_MICROSECONDS = 2**63 - 1

_REFUSED = {
    "classification": "labels stand in the output label, and probabilities in the output of that name",
    "sequence_id": "this service keeps nothing from one request to the next",
    "shared_memory_region": "send the tensor itself; this service reads no memory of others",
}
"""Parameters that would change the answer, and what to do instead."""


@dataclass(frozen=True)
class RequestedOutput:
    """An output that a client asks for.

    Attributes:
        name: of the output.
        parameters: as they were received.
    """

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_parameters(f"output {cut(self.name)}", self.parameters)
        _check_flag(f"output {cut(self.name)}", "binary_data", self.parameters)

    @property
    def binary(self) -> bool | None:
        """Whether in binary form; ``None`` leaves it to the request."""
        return self.parameters.get("binary_data")


@dataclass(frozen=True)
class InferRequest:
    """What a client asks.

    Attributes:
        id: that its answer repeats; ``None`` without one.
        inputs: tensors of different names, at least one.
        outputs: that it wants; none for all.
        parameters: as they were received.
    """

    id: str | None
    inputs: tuple[Tensor, ...]
    outputs: tuple[RequestedOutput, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.inputs:
            raise ServeError(400, "the request has no inputs; expected at least one tensor")
        for kind, names in (("input", self.names), ("output", [output.name for output in self.outputs])):
            name, times = next(iter(Counter(names).most_common(1)), ("", 0))
            if times > 1:
                raise ServeError(400, f"the request has {kind} {cut(name)} {times} times; expected each name once")
        check_parameters("the request", self.parameters)
        _check_flag("the request", "binary_data_output", self.parameters)
        if not is_whole(self.parameters.get("timeout", 0), 0, MOST_MICROSECONDS):
            raise ServeError(
                400, f"timeout is {cut(self.parameters['timeout'])}; expected a whole number of microseconds, 0 or more"
            )

    @property
    def names(self) -> list[str]:
        """Of the inputs."""
        return [tensor.name for tensor in self.inputs]

    @property
    def timeout(self) -> float | None:
        """Seconds that its answer may take at most, of the parameter ``timeout``; ``None`` without one."""
        return int(self.parameters.get("timeout", 0)) / 1e6 or None


@dataclass(frozen=True)
class InferResponse:
    """What the service answers.

    Attributes:
        model_name, model_version: that answered.
        id: of the request.
        outputs: in the order of the request.
        parameters: none so far.
    """

    model_name: str
    model_version: str
    id: str | None
    outputs: tuple[Tensor, ...]
    parameters: Mapping[str, Any] = field(default_factory=dict)


def read_request(body: bytes, header_length: int | None = None) -> InferRequest:
    """The request that a body holds."""
    if header_length is not None and not is_whole(header_length, 1, len(body)):
        raise ServeError(
            400,
            f"{HEADER} is {header_length}; expected the length of the JSON, 1 to {len(body)}, the length of the body",
        )
    end = len(body) if header_length is None else header_length
    message = read_object(body[:end], "the request", "an object with inputs")
    rest = _Rest(memoryview(body)[end:], header_length is not None)
    parameters = _parameters("the request", message)
    inputs = [_input(index, given, rest) for index, given in enumerate(_list("inputs", message))]
    rest.check_end()
    outputs = [_output(index, given) for index, given in enumerate(_list("outputs", message))]
    given_id = message.get("id")
    if given_id is not None and not isinstance(given_id, str):
        raise ServeError(400, f"id is {cut(given_id)}; expected text")
    return InferRequest(given_id, tuple(inputs), tuple(outputs), parameters)


def write_response(response: InferResponse, request: InferRequest) -> tuple[bytes, int | None]:
    """The body of an answer, and the length of its JSON where binary tensors stand behind that."""
    asked = {output.name: output.binary for output in request.outputs}
    usual = request.parameters.get("binary_data_output") is True
    outputs, tail = [], []
    for tensor in response.outputs:
        told: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.data.shape)}
        binary = asked.get(tensor.name)
        if usual if binary is None else binary:
            tail.append(to_bytes(tensor))
            told["parameters"] = {SIZE: len(tail[-1])}
        else:
            told["data"] = to_values(tensor)
        outputs.append(told)
    message: dict[str, Any] = {"model_name": response.model_name, "model_version": response.model_version}
    message |= {} if response.id is None else {"id": response.id}
    message |= {"parameters": dict(response.parameters)} if response.parameters else {}
    head = json.dumps({**message, "outputs": outputs}, allow_nan=False, separators=(",", ":")).encode()
    return b"".join([head, *tail]), len(head) if tail else None


def check_parameters(what: str, parameters: Mapping[str, Any]) -> None:
    """Refuse parameters that would change the answer and are not served (ServeError 400)."""
    for name, instead in _REFUSED.items():
        if parameters.get(name) not in (None, 0, ""):
            raise ServeError(400, f"{what} has parameter {name}, which is not served here; {instead}")


class _Rest:
    """The bytes behind the JSON, which tensors take one after the other."""

    def __init__(self, view: memoryview, marked: bool) -> None:
        self._view, self._marked, self._taken = view, marked, 0

    def take(self, what: str, size: Any) -> memoryview:
        """The next bytes."""
        if not self._marked:
            raise ServeError(400, f"{what} has {SIZE}, but the request has no header {HEADER}; expected both")
        left = len(self._view) - self._taken
        if not is_whole(size, 0, left):
            raise ServeError(
                400, f"{what} has {SIZE} {cut(size)}; expected a whole number up to {left}, the bytes that are left"
            )
        self._taken += size
        return self._view[self._taken - size : self._taken]

    def check_end(self) -> None:
        """Refuse bytes that no tensor took."""
        if self._taken != len(self._view):
            raise ServeError(
                400,
                f"{len(self._view) - self._taken} bytes stand behind the last tensor; expected as many as the "
                f"{SIZE} of all inputs say",
            )


def _object(what: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ServeError(400, f"{what} is {cut(value)}; expected a JSON object")
    return value


def _list(name: str, message: Mapping[str, Any]) -> list[Any]:
    found = message.get(name)
    if found is not None and not isinstance(found, list):
        raise ServeError(400, f"{name} is {cut(found)}; expected a list of objects")
    return found or []


def _parameters(what: str, message: Mapping[str, Any]) -> dict[str, Any]:
    found = message.get("parameters")
    return {} if found is None else _object(f"parameters of {what}", found)


def _check_flag(what: str, name: str, parameters: Mapping[str, Any]) -> None:
    flag = parameters.get(name)
    if flag is not None and not isinstance(flag, bool):
        raise ServeError(400, f"{what} has {name} {cut(flag)}; expected true or false")


def _name(what: str, given: Mapping[str, Any]) -> str:
    name = given.get("name")
    if not isinstance(name, str) or not name:
        raise ServeError(400, f"{what} has name {cut(name)}; expected text")
    return name


def _input(index: int, given: Any, rest: _Rest) -> Tensor:
    """One input of a request."""
    found = _object(f"input {index}", given)
    name = _name(f"input {index}", found)
    what = f"input {cut(name)}"
    parameters = _parameters(what, found)
    check_parameters(what, parameters)
    datatype, shape = checked_head(what, found.get("datatype"), found.get("shape"))
    if SIZE not in parameters:
        if "data" not in found:
            raise ServeError(400, f"{what} has no data; expected a list, or {SIZE} among its parameters")
        return Tensor(name, datatype, from_values(what, datatype, shape, found["data"]))
    if "data" in found:
        raise ServeError(400, f"{what} has data and {SIZE}; expected one of them")
    return Tensor(name, datatype, from_bytes(what, datatype, shape, rest.take(what, parameters[SIZE])))


def _output(index: int, given: Any) -> RequestedOutput:
    """One output that a request asks for."""
    found = _object(f"output {index}", given)
    name = _name(f"output {index}", found)
    parameters = _parameters(f"output {cut(name)}", found)
    return RequestedOutput(name, parameters)


def unknown(kind: str, names: Sequence[str], known: Sequence[str]) -> ServeError:
    """The refusal of inputs or outputs that a model has not."""
    return ServeError(400, f"the request has {kind} {listing(map(cut, names))}; expected some of {listing(known, 40)}")
