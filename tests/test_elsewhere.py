"""Hubs, code, kernels, addresses and files that data or checkpoints name are never requested."""

import json
import shutil
import socket
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.parquet
import pytest
import transformers
from hydrant.data.audio import opened as opened_sound
from hydrant.data.corruptions import corrupt
from hydrant.data.data_options import DataOptions
from hydrant.data.data_sources import named_rows
from hydrant.data.images import ImageProcessor
from hydrant.errors import HydrantError, InputError
from hydrant.models.checkpoint import load_model, load_processor
from hydrant.models.tracing.traced_model import load_traced
from PIL import Image
from support import make_model, make_tokenizer

CODE = "somebody/code--module.Class"
PLACE = "http://somewhere.invalid/file"

NAMED: dict[str, dict[str, dict[str, Any]]] = {
    "code": {"config.json": {"auto_map": {"AutoConfig": CODE, "AutoModelForSequenceClassification": CODE}}},
    "kernel of attention": {"config.json": {"_attn_implementation": "somebody/kernel"}},
    "kernel of experts": {"config.json": {"_experts_implementation": "somebody/kernel"}},
    "name": {"config.json": {"_name_or_path": "somebody/model"}},
    "weights": {"config.json": {"transformers_weights": "../model.safetensors"}},
    "quantization": {"config.json": {"quantization_config": {"quant_method": "gptq", "bits": 4, "tokenizer": "a/b"}}},
    "timm": {"config.json": {"model_type": "timm_wrapper", "architecture": "hf-hub:somebody/model"}},
    "backbone": {"config.json": {"use_timm_backbone": True, "backbone": "somebody/model", "use_pretrained": True}},
    "adapter": {"adapter_config.json": {"peft_type": "LORA", "base_model_name_or_path": "somebody/model"}},
    "tokenizer's code": {"tokenizer_config.json": {"auto_map": {"AutoTokenizer": [CODE, CODE]}}},
    "tokenizer's class": {"tokenizer_config.json": {"tokenizer_class": CODE}},
    "tokenizer's files": {"tokenizer_config.json": dict.fromkeys(("vocab_file", "tokenizer_file"), PLACE)},
    "processor's code": {"preprocessor_config.json": {"auto_map": {"AutoImageProcessor": CODE}}},
    "processor's class": {"preprocessor_config.json": {"image_processor_type": CODE, "feature_extractor_type": CODE}},
}  # fmt: skip


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Requests to a network, all of which fail."""
    places: list[str] = []

    def refuse(*where: Any, **options: Any) -> None:
        places.append(str(where))
        raise OSError("no network")

    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("transformers.modeling_utils.lazy_import_flash_attention", refuse)
    return places


def open_in_all_ways(source: str | Path) -> None:
    """Open a checkpoint as every type of model and processor, and ignore errors."""
    kinds = ("text", "image", "audio")
    for way in (load_model, load_traced, *(partial(load_processor, modality=kind) for kind in kinds)):
        with suppress(HydrantError):
            way(source)  # type: ignore[operator]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer and an image processor, to be copied."""
    folder = tmp_path_factory.mktemp("elsewhere")
    make_model("bert").save_pretrained(folder)
    make_tokenizer(folder)
    transformers.ViTImageProcessorPil().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", NAMED)
def test_nothing_that_a_checkpoint_names_is_requested(
    name: str, requests: list[str], checkpoint: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(checkpoint, tmp_path / "named")
    for file, change in NAMED[name].items():
        path = folder / file
        before = json.loads(path.read_text()) if path.is_file() else {}
        path.write_text(json.dumps({**before, **change}))
    open_in_all_ways(folder)
    assert not requests


def test_a_hub_name_is_requested(requests: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Proves that the test above can fail."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between tries
    with pytest.raises(InputError):
        load_model("somebody/model")
    assert requests


FILE = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n%%EOF\n"
IMAGES = DataOptions(text="image")


def declared(path: Path, value: Any, kind: str = "Image", nested: bool = False) -> Path:
    """A Parquet file with texts, and a second column whose type its metadata declare."""
    features = {"text": {"dtype": "string", "_type": "Value"}, "image": {"_type": kind}}
    if nested:
        features["image"] = {"_type": "List", "feature": features["image"]}  # type: ignore[dict-item]
    column = pyarrow.array([[value] if nested else value], pyarrow.list_(FILE) if nested else FILE)
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    path.parent.mkdir(exist_ok=True)
    table = pyarrow.table({"text": ["a text"], "image": column}).replace_schema_metadata(metadata)
    assert str(datasets.Features.from_arrow_schema(table.schema)["image"]).startswith("List" if nested else kind)
    pyarrow.parquet.write_table(table, path)
    return path


PLACES = [PLACE, "hf://datasets/a/b/c.png", f"zip://a.png::{PLACE}", "file:///etc/hostname"]
ADDRESSES = [
    *((place, "Image", False) for place in PLACES),
    *((PLACE, "Audio", nested) for nested in (False, True)),
    (PLACE, "Video", True),
]
"""Address, type of its column, and true if it is in a list."""


@pytest.mark.parametrize(("place", "kind", "nested"), ADDRESSES)
def test_no_address_in_data_is_requested(
    place: str, kind: str, nested: bool, requests: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checked with and without reading its column, from a file and through ``datasets``."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    path = declared(tmp_path / "set" / "train.parquet", {"bytes": None, "path": place}, kind, nested)
    assert [row.input for row in named_rows(path)] == ["a text"]
    message = "the image of" if nested else f"the image of .* row 1 is a file at the URL .*{place[:9]}"
    with pytest.raises(InputError, match=message) as caught:
        list(named_rows(path, IMAGES))
    assert "\n" not in str(caught.value)
    for name in (f"hf:{path.parent}", path) if not nested else ():
        (row,) = named_rows(name, IMAGES, missing=True)
        with pytest.raises(InputError, match=r"input 0 is a file at the URL "):
            _prepared(row.input)
    assert not requests


def _prepared(image: Any) -> None:
    ImageProcessor.encode(ImageProcessor.__new__(ImageProcessor), [image])


def test_images_in_data_are_read_as_files_are(
    requests: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their bytes are unchanged, so that no other program draws them; a path is a local file."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("PIL.EpsImagePlugin.Ghostscript", lambda *_, **__: pytest.fail("another program ran"))
    path = declared(tmp_path / "set" / "train.parquet", {"bytes": EPS, "path": "a.png"})
    for name in (path, f"hf:{path.parent}"):
        (row,) = named_rows(name, IMAGES, missing=True)
        assert row.input == EPS
        for way in (_prepared, lambda image: corrupt([image], "blur", 1)):
            with pytest.raises(InputError, match="it is EPS, which another program would have to draw"):
                way(row.input)
    Image.effect_noise((9, 9), 50).save(tmp_path / "a.png")
    pictures = [tmp_path / "a.png", (tmp_path / "a.png").read_bytes(), Image.open(tmp_path / "a.png")]
    blurred = [corrupt([picture], "blur", 1)[0].tolist() for picture in pictures]
    assert blurred[0] == blurred[1] == blurred[2]
    declared(path, {"bytes": None, "path": str(tmp_path / "a.png")})
    assert [row.input for row in named_rows(path, IMAGES, missing=True)] == [tmp_path / "a.png"]
    assert not requests


@pytest.mark.parametrize("place", [PLACE, "hf://datasets/a/b/c.png"])
@pytest.mark.parametrize("column", ["image", "audio"])
def test_no_address_in_a_table_of_paths_is_requested(
    column: str, place: str, requests: list[str], tmp_path: Path
) -> None:
    prepare = _prepared if column == "image" else lambda sound: opened_sound(sound, 0, 16000)
    for name, content in (
        ("data.jsonl", json.dumps({column: place})),
        ("file.jsonl", json.dumps({column: {"bytes": None, "path": place}})),
    ):
        (tmp_path / name).write_text(content)
        (row,) = named_rows(tmp_path / name, DataOptions(text=column), missing=True)
        with pytest.raises(InputError, match=r"is a URL|is not a file|is a dict"):
            prepare(row.input)
    assert not requests
