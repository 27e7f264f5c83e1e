"""A checkpoint's files may name hubs, code, kernels, addresses and other files: nothing of that is asked for."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
import transformers
from hydrant.errors import HydrantError, InputError
from hydrant.families.checkpoint import load_model, load_processor
from hydrant.tracing.loading import load_traced
from support import make_model, make_tokenizer

CODE = "somebody/code--module.Class"
PLACE = "http://somewhere.invalid/file"

NAMED: dict[str, dict[str, dict[str, Any]]] = {
    "code": {"config.json": {"auto_map": {"AutoConfig": CODE, "AutoModelForSequenceClassification": CODE}}},
    "code of another kind": {"config.json": {"auto_map": {"AutoConfig": CODE}, "model_type": "other"}},
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
    "tokenizer's name": {"tokenizer_config.json": {"name_or_path": "somebody/model"}},
    "processor's code": {"preprocessor_config.json": {"auto_map": {"AutoImageProcessor": CODE}}},
    "processor's class": {"preprocessor_config.json": {"image_processor_type": CODE, "feature_extractor_type": CODE}},
}  # fmt: skip


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked of a network, which is not there."""
    found: list[str] = []

    def refuse(*where: Any, **options: Any) -> None:
        found.append(str(where))
        raise OSError("there is no network")

    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("transformers.modeling_utils.lazy_import_flash_attention", refuse)
    return found


def opened(source: str | Path) -> list[str]:
    """What comes of opening a checkpoint in each way: nothing, or why it was refused."""
    ways = (load_model, load_traced, *(lambda name, kind=kind: load_processor(name, kind) for kind in READ))
    found = []
    for way in ways:
        try:
            way(source)  # type: ignore[operator]
            found.append("")
        except HydrantError as error:
            found.append(str(error))
    return found


READ = "text", "image", "audio"


@pytest.mark.parametrize("name", NAMED)
def test_nothing_that_a_checkpoint_names_is_asked_for(name: str, asked: list[str], tmp_path: Path) -> None:
    make_model("bert").save_pretrained(tmp_path)
    make_tokenizer(tmp_path)
    transformers.ViTImageProcessorPil().save_pretrained(tmp_path)
    for file, change in NAMED[name].items():
        path = tmp_path / file
        before = json.loads(path.read_text()) if path.is_file() else {}
        path.write_text(json.dumps({**before, **change}))
    assert len(opened(tmp_path)) == 5
    assert not asked


def test_a_name_of_a_hub_is_asked_for(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the test above could not fail."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between tries
    with pytest.raises(InputError):
        load_model("somebody/model")
    assert asked
