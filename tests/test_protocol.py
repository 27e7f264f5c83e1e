"""The codec of the Open Inference Protocol, against independent encoders and decoders."""

import base64
import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hydrant import GraphForm, Prediction, export_onnx, fuse, load, save_bundle
from hydrant.models.checkpoint import load_processor
from hydrant.serving.datatypes import DTYPES, Tensor, from_values
from hydrant.serving.http_refusals import ServeError
from hydrant.serving.oip import InferRequest, inputs_of, model_metadata, outputs_of, read_infer, write_infer
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from serve_support import picture
from support import random_plan

LIMITS = settings(max_examples=60, deadline=None)
NUMPY = {
    "BOOL": "?", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "INT8": "i1", "INT16": "<i2",
    "INT32": "<i4", "INT64": "<i8", "FP16": "<f2", "FP32": "<f4", "FP64": "<f8",
}  # fmt: skip


MODEL: Any = SimpleNamespace(name="m", version="2")


def tensor_of(draw: Any, datatype: str, finite: bool, text: bool) -> Tensor:
    shape = draw(arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    if datatype == "BYTES":
        elements = st.text(max_size=6).map(str.encode) if text else st.binary(max_size=6)
        items = draw(st.lists(elements, min_size=math.prod(shape), max_size=math.prod(shape)))
        data = np.empty(len(items), object)
        data[:] = items
        return Tensor("x", datatype, data.reshape(shape))
    if datatype == "BF16":
        halves = draw(arrays.arrays(np.uint16, shape))
        data = (halves.astype(np.uint32) << 16).view(np.float32)
        return Tensor("x", datatype, np.nan_to_num(data, nan=1, posinf=2, neginf=3) if finite else data)
    floats = {"allow_nan": not finite, "allow_infinity": not finite} if datatype.startswith("FP") else {}
    dtype = np.dtype(NUMPY[datatype]).newbyteorder("=")
    return Tensor("x", datatype, draw(arrays.arrays(dtype, shape, elements=arrays.from_dtype(dtype, **floats))))


tensors = st.composite(tensor_of)
any_type = st.sampled_from(list(DTYPES))


def raw(tensor: Tensor) -> bytes:
    if tensor.datatype == "BYTES":
        return b"".join(struct.pack("<I", len(item)) + item for item in tensor.data.ravel())
    if tensor.datatype == "BF16":
        return b"".join(struct.pack("<f", value)[2:] for value in tensor.data.ravel())
    return tensor.data.astype(NUMPY[tensor.datatype]).tobytes()


def same(a: np.ndarray, b: np.ndarray) -> None:
    assert a.shape == b.shape and a.dtype == b.dtype
    np.testing.assert_array_equal(a, b)


def binary_request(tensor: Tensor, **more: Any) -> tuple[bytes, int]:
    data = raw(tensor)
    declared = {"name": "x", "datatype": tensor.datatype, "shape": list(tensor.data.shape)}
    head = json.dumps({"inputs": [{**declared, "parameters": {"binary_data_size": len(data)}}], **more}).encode()
    return head + data, len(head)


@LIMITS
@given(any_type.flatmap(lambda kind: tensors(kind, finite=False, text=False)))
def test_binary_tensors_are_read_bit_by_bit(tensor: Tensor) -> None:
    request = read_infer(*binary_request(tensor))
    assert request.inputs[0].datatype == tensor.datatype
    same(request.inputs[0].data, tensor.data)


@LIMITS
@given(any_type.flatmap(lambda kind: tensors(kind, finite=True, text=True)), st.booleans())
def test_json_tensors_are_read_flat_and_nested(tensor: Tensor, nested: bool) -> None:
    data = tensor.data
    if tensor.datatype == "BYTES":
        data = np.array([item.decode() for item in data.ravel()], object).reshape(data.shape)
    values = data.tolist() if nested and data.ndim else data.ravel().tolist()
    declared = {"name": "x", "datatype": tensor.datatype, "shape": list(data.shape), "data": values}
    same(read_infer(json.dumps({"inputs": [declared]}).encode()).inputs[0].data, tensor.data)


@LIMITS
@given(any_type.flatmap(lambda kind: tensors(kind, finite=False, text=True)), st.booleans())
def test_answers_are_read_by_an_independent_reader(tensor: Tensor, binary: bool) -> None:
    if tensor.datatype == "BF16" and np.isnan(tensor.data).any():
        return  # all NaN become one quiet NaN
    body, length = write_infer(MODEL, InferRequest(None, (tensor,), {"x": binary}), (tensor,))
    assert (length is not None) is binary
    head = json.loads(body[:length])
    output = head["outputs"][0]
    assert output["shape"] == list(tensor.data.shape)
    if binary:
        assert "data" not in output and output["parameters"] == {"binary_data_size": len(body) - (length or 0)}
        assert body[length:] == raw(tensor)
    elif tensor.datatype == "BYTES":
        assert [item.encode() for item in output["data"]] == list(tensor.data.ravel())
    else:
        back = np.array(output["data"], tensor.data.dtype).reshape(tensor.data.shape)
        finite = np.isfinite(tensor.data) if tensor.data.dtype.kind == "f" else np.ones(tensor.data.shape, bool)
        np.testing.assert_array_equal(back[finite], tensor.data[finite])
        assert [value is None for value in output["data"]] == (~finite).ravel().tolist()  # JSON has no NaN


def test_bfloat16_is_rounded_as_torch_rounds() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.standard_normal(999), [1 + 2**-8, 1 + 3 * 2**-8, 3.38e38, 0.0, -0.0, 1e-40]])
    got = from_values("x", "BF16", (len(values),), values.tolist())
    same(got, torch.from_numpy(values.astype(np.float32)).to(torch.bfloat16).float().numpy())


words = st.sampled_from(
    ["name", "datatype", "shape", "data", "parameters", "inputs", "outputs", "id", "binary_data_size"]
)
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(list(DTYPES)),
    st.sampled_from([2**31 - 1, 10**30, -1]),
)  # fmt: skip
trees = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=5))
inputs = st.fixed_dictionaries(
    {"name": st.just("x") | leaves, "datatype": any_type | leaves, "shape": st.lists(leaves, max_size=3) | trees},
    optional={"data": trees, "parameters": trees | st.fixed_dictionaries({"binary_data_size": leaves})},
)
bodies = st.fixed_dictionaries(
    {"inputs": st.lists(inputs, max_size=2) | trees}, optional={"id": leaves, "outputs": trees, "parameters": trees}
)


@settings(max_examples=150, deadline=None)
@given(bodies | trees, st.binary(max_size=20), st.integers(-2, 40) | st.none(), st.booleans())
def test_any_json_is_read_or_raises_a_serve_error(body: Any, tail: bytes, length: int | None, exact: bool) -> None:
    head = json.dumps(body).encode()
    try:
        read_infer(head + tail, len(head) if exact else length)
    except ServeError as error:
        assert error.status == 400 and len(str(error)) < 500


def tensor_json(**fields: Any) -> dict[str, Any]:
    return {"name": "x", "datatype": "INT64", "shape": [2], "data": [1, 2], **fields}


def one(**fields: Any) -> dict[str, Any]:
    return {"inputs": [tensor_json(**fields)]}


def whole(message: Any) -> tuple[bytes, None]:
    return json.dumps(message).encode(), None


def binary(size: Any, data: bytes, **fields: Any) -> tuple[bytes, int]:
    declared = {name: value for name, value in tensor_json(**fields).items() if name != "data"}
    head = json.dumps({"inputs": [{**declared, "parameters": {"binary_data_size": size}}]}).encode()
    return head + data, len(head)


MALFORMED: list[tuple[tuple[bytes, int | None], str]] = [
    ((b"", None), "the request"),
    ((b"[" * 10**5, None), "the request"),
    ((b"{}", 3), "Inference-Header-Content-Length is 3"),
    (whole({"inputs": []}), "no inputs"),
    (whole({"inputs": [tensor_json(), tensor_json()]}), "input 'x' 2 times"),
    (whole({**one(), "parameters": {"sequence_id": 4}}), "sequence_id"),
    (whole(one(datatype="INT128")), "'INT128'"),
    (whole(one(shape=[1] * 9)), "8 axes"),
    (whole(one(shape=[10**6, 10**6])), "2147483648 elements of INT64"),
    (whole(one(shape=[2**21], datatype="BYTES", data=[])), "1048576 elements of BYTES"),
    (whole(one(data=[1])), r"1 values; expected 2"),
    (whole(one(shape=[3, 2], data=[[1, 2, 3], [4, 5, 6]])), r"\[3, 2\]"),
    (whole(one(datatype="UINT8", data=[0, -1])), "UINT8"),
    (whole(one(datatype="BOOL")), "`bool`"),
    (whole(one(datatype="FP32", data=[1, 1e39])), "FP32"),
    (whole(one(parameters={"binary_data_size": 16})), "data and binary_data_size"),
    (binary(16, b"\0" * 15), "'16'"),
    (binary(8, b"\0" * 8), "8 bytes; expected 16"),
    (binary(16, b"\0" * 17), "1 bytes follow"),
    (binary(2, b"\0\2", datatype="BOOL"), "BOOL"),
    (binary(8, b"\5" + b"\0" * 7, datatype="BYTES"), "element 0"),
    (binary(9, b"\0" * 9, datatype="BYTES"), "1 bytes after"),
]


@pytest.mark.parametrize(("request_", "name"), MALFORMED, ids=[str(place) for place in range(len(MALFORMED))])
def test_malformed_requests_are_refused_plainly(request_: tuple[bytes, int | None], name: str) -> None:
    with pytest.raises(ServeError, match=name) as caught:
        read_infer(*request_)
    assert caught.value.status == 400 and "\n" not in str(caught.value)


def test_parameters_and_requested_outputs() -> None:
    parameters = {"timeout": 1_500_000, "binary_data_output": True, "mine": "kept"}
    request = read_infer(*whole({**one(), "id": "a", "parameters": parameters, "outputs": [{"name": "y"}], "new": 1}))
    assert (request.id, request.timeout, request.binary, request.outputs) == ("a", 1.5, True, {"y": None})
    answer = Tensor("y", "BOOL", np.array([True]))
    body, length = write_infer(MODEL, request, (answer,))
    head = {"model_name": "m", "model_version": "2", "id": "a"}
    output = {"name": "y", "datatype": "BOOL", "shape": [1], "parameters": {"binary_data_size": 1}}
    assert (json.loads(body[:length]), body[length:]) == ({**head, "outputs": [output]}, b"\1")
    assert read_infer(*whole({**one(), "id": None, "parameters": None, "outputs": None})).timeout is None


@pytest.fixture(scope="module")
def text_model(bert_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("text") / "bundle"
    save_bundle(fuse(bert_checkpoint, random_plan("bert", 3)), path, load_processor(bert_checkpoint, "text"))
    export_onnx(path, form=GraphForm(member_outputs=True))
    with load(path) as predictor:
        yield SimpleNamespace(name="m", version="3", predictor=predictor, ready=True)


@pytest.fixture(scope="module")
def image_model(vit_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("image") / "bundle"
    save_bundle(fuse(vit_checkpoint, random_plan("vit", 2)), path, load_processor(vit_checkpoint, "image"))
    with load(path, "torch") as predictor:
        yield SimpleNamespace(name="i", version="1", predictor=predictor, ready=True)


def infer(outputs: tuple[str, ...] = (), **inputs: Any) -> InferRequest:
    def tensor(name: str, value: Any) -> Tensor:
        if isinstance(value, np.ndarray):
            return Tensor(name, {"i": "INT64", "f": "FP32"}[value.dtype.kind], value)
        data = np.empty(len(value), object)
        data[:] = value
        return Tensor(name, "BYTES", data)

    return InferRequest("7", tuple(tensor(name, value) for name, value in inputs.items()), dict.fromkeys(outputs))


def fits(tensors: Mapping[str, Tensor], metadata: dict[str, Any]) -> None:
    """Check that the outputs match the metadata."""
    assert list(tensors) == [output["name"] for output in metadata["outputs"]]
    for output in metadata["outputs"]:
        tensor = tensors[output["name"]]
        assert (tensor.datatype, tensor.data.ndim) == (output["datatype"], len(output["shape"]))
        assert tensor.data.dtype == DTYPES[tensor.datatype]
        assert all(size in (-1, actual) for size, actual in zip(output["shape"], tensor.data.shape, strict=True))


def test_texts_as_inputs_and_every_field_as_output(text_model: Any) -> None:
    request = infer(text=[b"hello world", "what is thé".encode()])
    inputs = inputs_of(request, text_model)
    assert inputs == ["hello world", "what is thé"]
    prediction = text_model.predictor.predict(inputs)
    outputs = {tensor.name: tensor for tensor in outputs_of(prediction, request, text_model)}
    fits(outputs, model_metadata(text_model))
    assert set(outputs) == {*prediction.arrays, "label_index"} and "member_probabilities" in outputs
    assert [name.decode() for name in outputs["label"].data] == [
        text_model.predictor.labels[i] for i in prediction.label
    ]
    np.testing.assert_array_equal(outputs["label_index"].data, prediction.label)
    for name in set(outputs) - {"label", "label_index"}:
        assert outputs[name].data is getattr(prediction, name)


def test_pairs_and_columns_and_outputs_by_name_in_the_order_of_the_request(text_model: Any) -> None:
    request = infer(text=[b"a", b"b"], text_pair=[b"c", b"d"])
    assert inputs_of(request, text_model) == [("a", "c"), ("b", "d")]
    column = Tensor("text", "BYTES", np.array([[b"a"], [b"b"]], object))
    assert inputs_of(InferRequest(None, (column,)), text_model) == ["a", "b"]
    request = infer(("label_index", "confidence"), text=[b"hello"])
    prediction = text_model.predictor.predict(inputs_of(request, text_model))
    assert [tensor.name for tensor in outputs_of(prediction, request, text_model)] == ["label_index", "confidence"]
    with pytest.raises(ServeError, match="'scores'"):
        inputs_of(infer(("scores",), text=[b"hello"]), text_model)


def test_logits_are_answered_only_where_they_are_requested(text_model: Any) -> None:
    request = infer(("logits", "probabilities"), text=[b"hello", b"what is"])
    prediction = text_model.predictor.predict(inputs_of(request, text_model))
    logits, probabilities = outputs_of(prediction, request, text_model)
    assert (logits.name, logits.datatype, logits.data.shape) == ("logits", "FP32", probabilities.data.shape)
    np.testing.assert_allclose(np.exp(logits.data), probabilities.data, atol=1e-6)
    assert "logits" not in {output["name"] for output in model_metadata(text_model)["outputs"]}
    assert "logits" not in {tensor.name for tensor in outputs_of(prediction, infer(text=[b"a"]), text_model)}


def test_images_as_files_and_in_base64(image_model: Any) -> None:
    file = picture(9, 9)
    request = infer(image=[file, base64.b64encode(file), base64.encodebytes(file)])
    inputs = inputs_of(request, image_model)
    assert inputs == [file] * 3
    prediction = image_model.predictor.predict(inputs)
    fits({tensor.name: tensor for tensor in outputs_of(prediction, request, image_model)}, model_metadata(image_model))
    assert len(file) > 76, "base64 of several lines"


UNFIT: list[tuple[InferRequest, str]] = [
    (infer(words=[b"a"]), "'words'"),
    (infer(text=[b"a"], input_ids=np.ones((1, 1), int)), "'text', 'input_ids'"),
    (infer(text=[b"a"], text_pair=[b"b", b"c"]), "'text_pair'"),
    (infer(text=np.ones(2)), "'text' is FP32"),
    (infer(text=[b"a", b"\xff"]), "element 1"),
    (infer(input_ids=[b"a"], attention_mask=[b"a"]), "'input_ids' is BYTES"),
]


@pytest.mark.parametrize(("request_", "name"), UNFIT, ids=[str(place) for place in range(len(UNFIT))])
def test_inputs_that_do_not_fit_the_model(request_: InferRequest, name: str, text_model: Any) -> None:
    with pytest.raises(ServeError, match=name) as caught:
        inputs_of(request_, text_model)
    assert caught.value.status == 400


def test_failed_inputs_and_tokens_without_padding() -> None:
    none = [None] * 7
    scores = np.array([0.5, np.nan], np.float32)
    failed = Prediction(
        np.array([[1.0], [np.nan]], np.float32), np.array([0, -1]), *[scores] * 5,
        error=np.array([None, "input 1 is an empty text"], object),
    )  # fmt: skip
    served: Any = SimpleNamespace(predictor=SimpleNamespace(labels=["só"]))
    outputs = {tensor.name: tensor.data.tolist() for tensor in outputs_of(failed, infer(text=[b""]), served)}
    assert outputs["label"] == ["só".encode(), b""] and outputs["error"] == [b"", b"input 1 is an empty text"]
    body, _ = write_infer(MODEL, infer(t=[b""]), outputs_of(failed, infer(text=[b""]), served))
    assert b'"name":"confidence","datatype":"FP32","shape":[2],"data":[0.5,null]' in body

    mask = np.array([[True, True, False, False], [True, False, False, False]])
    probabilities = np.ones((2, 4, 1), np.float32)
    tokens = Prediction(probabilities, *none[1:], member_probabilities=np.ones((2, 3, 4, 1), np.float32), mask=mask)
    shapes = {tensor.name: tensor.data.shape for tensor in outputs_of(tokens, infer(text=[b""]), served)}
    assert shapes == {"probabilities": (2, 2, 1), "member_probabilities": (2, 3, 2, 1), "mask": (2, 2)}
    with pytest.raises(ServeError, match="'label'"):
        outputs_of(tokens, infer(("label",), text=[b""]), served)
