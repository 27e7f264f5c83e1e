"""MC dropout as a competitor equals transformers' training mode, independent of the batch."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hydrant import Figures, evaluate
from hydrant.errors import InputError
from hydrant.evaluation.dropout import DropoutPasses, DropoutSpec, dropout_spec
from hydrant.models.family_registry import architecture_of
from hydrant.runtime.backends.reference import TorchModule
from support import feeds, make_inputs, make_model, named

RATES: dict[str, dict[str, Any]] = {
    "bert": {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.1},
    "roberta": {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.2, "classifier_dropout": 0.3},
    "distilbert": {"dropout": 0.2, "attention_dropout": 0.1, "seq_classif_dropout": 0.2},
    "vit": {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    "electra": {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "classifier_dropout": 0.2},
    "clip": {"attention_dropout": 0.2},
}


def backend(family: str, passes: int, seed: int = 0) -> TorchModule:
    model = make_model(family, **RATES[family])
    return TorchModule(DropoutPasses(model, family, architecture_of(model), passes, seed))


@pytest.mark.parametrize("family", RATES)
def test_passes_are_those_of_transformers_in_training_mode(family: str) -> None:
    """Mean and spread of the logits over many passes agree within sampling error."""
    count, inputs = 1500, make_inputs(family, batch=2)
    logits = backend(family, count)._run({name: tensor.numpy() for name, tensor in inputs.items()})["member_logits"]
    model = make_model(family, **RATES[family]).train()
    torch.manual_seed(12)
    for row in range(2):
        length = int(inputs["attention_mask"][row].sum()) if "attention_mask" in inputs else None
        own = {name: tensor[row, :length].expand(count, *tensor[row, :length].shape) for name, tensor in inputs.items()}
        with torch.no_grad():
            expected = model(**own).logits.double().numpy()
        spread = expected.std(axis=0)
        assert spread.min() > 0.01
        error = spread * np.sqrt(2 / count)
        assert (np.abs(logits[row].mean(axis=0) - expected.mean(axis=0)) < 5 * error).all()
        np.testing.assert_allclose(logits[row].std(axis=0), spread, rtol=0.15)


@pytest.mark.parametrize("family", ["bert", "vit"])
def test_neither_batch_mates_nor_threads_of_the_caller_change_a_score(family: str) -> None:
    """Batch, order and padding change no bit; another seed or input changes the masks."""
    inputs = feeds(family, batch=5)
    runs = backend(family, 6)
    torch.manual_seed(3)
    before = torch.rand(1)
    torch.manual_seed(3)
    together = runs._run(inputs)["member_logits"]
    assert torch.equal(torch.rand(1), before), "the caller's random numbers"
    reverse = runs._run({name: array[::-1].copy() for name, array in inputs.items()})["member_logits"]
    assert np.array_equal(reverse[::-1], together)
    for row in range(5):
        one = {name: array[row : row + 1] for name, array in inputs.items()}
        if family == "bert":
            one = {name: np.pad(array, ((0, 0), (0, 4))) for name, array in one.items()}
        assert np.array_equal(runs._run(one)["member_logits"][0], together[row])
    assert not np.array_equal(backend(family, 6, seed=1)._run(inputs)["member_logits"], together)
    assert np.abs(np.diff(together, axis=1)).min() > 0, "no two passes alike"


def test_which_model_is_meant(text_bundle: Path, tmp_path: Path) -> None:
    assert dropout_spec("mc-dropout:10:some/model", []) == DropoutSpec(10, "some/model")
    assert dropout_spec("mc-dropout:2", [text_bundle, "mc-dropout:2", "model"]) == DropoutSpec(2, "model")
    assert dropout_spec("some/model", []) is None
    for source, compare, message in (
        ("mc-dropout", ["model"], "mc-dropout.*2 to 1000"),
        ("mc-dropout:4", [text_bundle], r"names no checkpoint, and no checkpoint is compared"),
        ("mc-dropout:4", ["a", "b"], r"several are compared \(a, b\)"),
    ):
        with pytest.raises(InputError, match=message):
            dropout_spec(source, compare)


def test_a_checkpoint_without_dropout_is_refused(text_bundle: Path, vit_checkpoint: Path, tmp_path: Path) -> None:
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    shutil.copytree(text_bundle / "processor", tmp_path / "still", dirs_exist_ok=True)
    data = (["hello world", "the money"], ["a", "b"])
    make_model("bert", **still, **named("abcde")).save_pretrained(tmp_path / "still")
    with pytest.raises(InputError, match=r"still has dropout rates of zero.*hydrant plan --method dropout"):
        evaluate(text_bundle, data, compare=[f"mc-dropout:3:{tmp_path / 'still'}"], figures=Figures(bootstrap=0))
    with pytest.raises(InputError, match="different classes: LABEL_0"):
        evaluate(text_bundle, data, compare=[f"mc-dropout:3:{vit_checkpoint}"], figures=Figures(bootstrap=0))
