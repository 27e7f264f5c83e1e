"""A Deep Ensemble as a competitor equals transformers and NumPy; kinds and operations of the models beside it."""

import inspect
from pathlib import Path
from typing import Any

import numpy as np
import oracle
import pytest
import torch
import transformers
from hydrant import Bundle, Figures, evaluate, fuse, save_bundle
from hydrant.cli.evaluate import evaluation_text
from hydrant.data.examples import read_examples
from hydrant.data.processor import from_transformers
from hydrant.errors import InputError
from hydrant.evaluation.deep_ensemble import CheckpointMembers, DeepEnsemble, operations_of
from hydrant.metrics import class_metrics as metrics
from hydrant.models.checkpoint import load_processor
from hydrant.models.plan_cost import cost_of
from hydrant.tuning.loop import measure
from hydrant.tuning.settings import Jointly, Settings
from hydrant.tuning.tuning_data import Source
from support import make_model, make_tokenizer, named, save_checkpoint
from test_calibrate import write_texts
from traced_support import TEXT

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def checkpoints(bert_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A declared family's model with its classes in another order, the bundle's own, and one that is traced."""
    folder = tmp_path_factory.mktemp("members")
    config = transformers.AlbertConfig(**{**TEXT, "embedding_size": 16, "num_labels": 5, **named("abcde")})
    models = {
        "distilbert": make_model("distilbert", 1, n_layers=1, num_labels=5, **named("edcba")),
        "albert": transformers.AutoModelForSequenceClassification.from_config(config),
    }
    for name, model in models.items():
        model.save_pretrained(folder / name)
        make_tokenizer(folder / name / "source").save_pretrained(folder / name)
    return [folder / "distilbert", bert_checkpoint, folder / "albert"]


def member_logits(checkpoints: list[Path], texts: Any) -> np.ndarray:
    """Logits [M, N, C] of transformers, classes in the order a to e, float64."""
    logits = []
    for path in checkpoints:
        tensors = make_tokenizer(path.parent / "tokens")(list(texts), padding=True, return_tensors="pt")
        model = transformers.AutoModelForSequenceClassification.from_pretrained(path).eval()
        read = inspect.signature(model.forward).parameters
        with torch.no_grad():
            own = model(**{name: tensors[name] for name in tensors if name in read}).logits.double().numpy()
        logits.append(own[:, [model.config.label2id[label] for label in "abcde"]])
    return np.stack(logits)


def test_rows_against_transformers(
    text_bundle: Path, bert_checkpoint: Path, checkpoints: list[Path], tmp_path: Path, undrawn: None
) -> None:
    """Members of two sizes and three families; one model alone is single, tuned, or taught."""
    test = read_examples(write_texts(tmp_path / "test.csv", 60, 2), list("abcde"))
    ood = read_examples(write_texts(tmp_path / "ood.csv", 30, 1, labels="x"), None)
    tuned: dict[str, Any] = {"single": {}, "control": {"tuned": {}}, "taught": {"tuned": {"teachers": [{"name": "m"}]}}}
    for name, facts in tuned.items():
        ensemble = fuse(bert_checkpoint)
        ensemble.provenance |= facts
        save_bundle(ensemble, tmp_path / name, load_processor(bert_checkpoint, "text"))
    compare: list[Any] = [*(tmp_path / name for name in tuned), DeepEnsemble(tuple(checkpoints), 1.5, "teachers")]
    compare.append(f"deep-ensemble:{checkpoints[0]},{bert_checkpoint}")
    figures = Figures(bootstrap=20)
    report = evaluate(text_bundle, test, ood, compare=compare, figures=figures, report=tmp_path / "report")
    _, single, control, taught, row, two = report.models
    assert [model.kind for model in report.models] == ["bundle", *tuned, "teachers", "deep-ensemble"]
    assert (row.name, row.members, row.temperature, two.name) == ("teachers", 3, 1.5, "Deep Ensemble")
    known, unknown = (oracle.softmax(member_logits(checkpoints, each.inputs) / 1.5) for each in (test, ood))
    mean, labels = known.mean(axis=0), np.array(test.labels)
    assert row.figures["nll"].value == pytest.approx(-np.log(mean[np.arange(60), labels]).mean(), abs=1e-5)
    assert row.figures["accuracy"].value == np.mean(mean.argmax(axis=1) == labels)
    information = [oracle.uncertainty(each)["mutual_information"] for each in (known, unknown)]
    assert row.figures["ood.mutual_information.auroc"].value == pytest.approx(metrics.auroc(*information), abs=2e-3)
    assert row.over_single["nll"].value == pytest.approx(row.figures["nll"].value - single.figures["nll"].value)
    assert taught.over_single["nll"].value == control.over_single["nll"].value == 0

    cost, small = cost_of(Bundle.open(text_bundle)), operations_of(*CheckpointMembers(checkpoints[:1]).shapes)
    operations = [model.operations for model in report.models]
    assert operations == [cost.fused.flops, *[cost.single.flops] * 3, None, (small or 0) + cost.single.flops]
    wanted = ["–" if each is None else f"{each / cost.single.flops:.2f} ×" for each in operations]
    line = next(line for line in evaluation_text(report).splitlines() if line.startswith("operations ÷ single"))
    assert line.split()[3:] == " ".join(wanted).split()


def test_their_temperature_can_be_fitted(checkpoints: list[Path], tmp_path: Path) -> None:
    data = read_examples(write_texts(tmp_path / "val.csv", 40, 3), list("abcde"))
    members: Any = CheckpointMembers(checkpoints)
    assert checkpoints[members.reader].name == "tiny-bert", "it reads token types"
    processor = from_transformers(load_processor(checkpoints[members.reader], "text"), members.architecture)
    found = measure(members, Source(data, processor, members.architecture), Settings(Jointly(), 8, 0))
    logits = member_logits(checkpoints, data.inputs)
    losses = {t: -np.log(oracle.softmax(logits / t).mean(axis=0)[np.arange(40), data.labels]).mean()
              for t in found["temperature"] * np.array([0.8, 1, 1.25])}  # fmt: skip
    assert min(losses, key=losses.__getitem__) == found["temperature"]
    assert found["nll"] == pytest.approx(min(losses.values()), abs=1e-5)


def test_refusals(text_bundle: Path, bert_checkpoint: Path, vit_checkpoint: Path, tmp_path: Path) -> None:
    names = save_checkpoint(tmp_path / "names", labels="abcdz")
    longer = save_checkpoint(tmp_path / "cased")
    transformers.BertTokenizer(vocab=str(longer / "source" / "vocab.txt"), do_lower_case=False).save_pretrained(longer)
    for others, words in (
        ([], "names too few checkpoints; expected two or more: deep-ensemble:A,B"),
        ([""], "names too few checkpoints"),
        ([names], "names and .*tiny-bert have different classes: e, z are not in both"),
        ([longer], "prepare their inputs differently"),
        ([vit_checkpoint], "tiny-vit is for classification of image inputs.*expected models of one kind"),
        ([text_bundle], "is a hydrant bundle; expected a Hugging Face checkpoint"),
    ):
        spec = f"deep-ensemble:{','.join(map(str, [bert_checkpoint, *others]))}"
        with pytest.raises(InputError, match=words):
            evaluate(text_bundle, (["hello", "money"], ["a", "b"]), compare=spec, figures=Figures(bootstrap=0))
