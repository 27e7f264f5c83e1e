"""Learning from teachers: the loss, the teachers' logits, members of every task, and what is refused."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import hydrant
import numpy as np
import pytest
import support
import torch
import transformers
from hydrant import Bundle, HeadPlan, Jointly, Reading, fuse, load_ensemble, save_bundle
from hydrant.cli import main as cli
from hydrant.cli.tune import tune_text
from hydrant.errors import InputError
from hydrant.fusion import FusedClassifier
from hydrant.hub.card import model_card
from hydrant.models.checkpoint import load_model, load_processor
from hydrant.models.tracing.traced_model import load_classifier
from hydrant.tuning import Taught, TuneReport, taught_source, tune, tuning_data, views
from hydrant.tuning.distillation import distillation_loss, soft_targets
from hydrant.tuning.job import shared_form
from hypothesis import given
from hypothesis import strategies as st
from support import LAYERS, make_inputs, make_model, save_checkpoint
from task_support import FILLERS, KINDS, make_case
from test_cost import assert_cost
from test_tune import NO_DROPOUT, interrupted_after, pictures, same, state, weights, write_csv
from token_support import first_tokens, make_word_tokenizer, sentences
from torch.nn.functional import binary_cross_entropy, kl_div, mse_loss
from traced_support import DEBERTA_V3, SIGMOID

MEMBERS, ROWS, REPEATS = 3, 40, 8
READING = Reading(batch_size=16)
OWN = list(range(MEMBERS))


@pytest.mark.parametrize("kind", ["classes", "labels", "scores"])
@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), st.sampled_from([0.5, 1.0, 2.0]), st.booleans())
def test_the_loss_and_its_gradients_are_those_of_pytorch(
    kind: Any, members: int, batch: int, classes: int, softening: float, mean: bool
) -> None:
    shape = (members, batch, 1 if kind == "scores" else classes)
    torch.manual_seed(members + batch + classes)
    ours, teachers = (3 * torch.randn(shape, dtype=torch.float64) for _ in range(2))
    theirs = ours.clone().requires_grad_()
    targets = soft_targets(teachers, "sigmoid", kind=kind, softening=softening, mean=mean)
    loss = distillation_loss(ours.requires_grad_(), targets, "sigmoid", kind=kind, softening=softening)
    temperature = 1.0 if kind == "scores" else softening
    soft = (teachers / temperature).softmax(-1) if kind == "classes" else (teachers / temperature).sigmoid()
    soft = (soft.mean(dim=0).expand(shape) if mean else soft).flatten(0, 1)
    scaled = (theirs / temperature).flatten(0, 1)
    if kind == "scores":
        expected = mse_loss(scaled.sigmoid(), soft)
    elif kind == "labels":
        expected = softening**2 * (binary_cross_entropy(scaled.sigmoid(), soft) - binary_cross_entropy(soft, soft))
    else:
        expected = softening**2 * kl_div(scaled.log_softmax(-1), soft, reduction="batchmean")
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-12)


def test_tokens_without_a_target_teach_nothing() -> None:
    """The loss of tags is that of the words alone; padding and pieces of words have NaN in place of logits."""
    torch.manual_seed(0)
    ours, teachers = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5)
    words = torch.tensor([[1, 1, 0, 0], [1, 0, 1, 1], [0, 0, 0, 0]]).bool()
    teachers[:, ~words] = torch.nan
    targets = soft_targets(teachers, "identity", kind="classes", softening=2.0, mean=False)
    loss = distillation_loss(ours, targets, "identity", kind="classes", softening=2.0)
    parts = (ours[:, words] / 2).log_softmax(-1).flatten(0, 1), targets[:, words].flatten(0, 1)
    torch.testing.assert_close(loss, 4 * kl_div(*parts, reduction="batchmean"))


@dataclass(frozen=True)
class School:
    """A model, its teachers, and data: ROWS inputs, repeated, with labels drawn from the teachers' mean."""

    task: str
    model: Path
    teachers: list[Path]
    inputs: list[Any]
    labels: list[Any]

    @property
    def kind(self) -> Any:
        return {"regression": "scores", "relevance": "labels", "multi_label": "labels"}.get(self.task, "classes")

    @property
    def taught(self) -> torch.Tensor:
        """The teachers' logits [M, N, C] of the different inputs."""
        return torch.stack([self.logits(load_classifier(each)) for each in self.teachers])

    def bundle(self, path: Path, plan: HeadPlan | None = None, members: int | None = MEMBERS) -> Path:
        processor = load_processor(self.model, "image" if self.task == "image" else "text")
        return save_bundle(fuse(self.model, plan, members=None if plan else members), path, processor).path

    def teach(self, bundle: Path, rows: int = ROWS * REPEATS, call: Any = None, **options: Any) -> TuneReport:
        """Tune by the first rows; ``options`` are those of ``Taught``, and ``call`` those of ``tune``."""
        how = Taught(**{"teachers": self.teachers, "learning_rate": 3e-3, **options})
        call = {"reading": READING, "validation": (self.inputs[:80], self.labels[:80]), **(call or {})}
        return tune(bundle, (self.inputs[:rows], self.labels[:rows]), how, **call)

    def logits(self, model: Any) -> torch.Tensor:
        """Logits [N, C] or [M, N, C] of a Hugging Face model or a fused one, input by input; for words one row each."""
        processor, rows = load_processor(self.model, "image" if self.task == "image" else "text"), []
        for item in self.inputs[:ROWS]:
            places = None
            if self.task == "tokens":
                tensors, places = first_tokens(processor, item)
            elif self.task == "image":
                tensors = processor(images=item, return_tensors="pt")
            else:
                tensors = processor(*([item] if isinstance(item, str) else item), return_tensors="pt")
            with torch.no_grad():
                out = model(**tensors)
            logits = out.member_logits if hasattr(out, "member_logits") else out.logits
            rows.append(logits if places is None else logits[..., 0, :, :][..., places, :])
        return torch.cat(rows, dim=-2)

    def distances(self, model: Any) -> np.ndarray:
        """The loss [M, M] of each member against each teacher."""
        loss = partial(distillation_loss, activation="identity", kind=self.kind, softening=1.0)
        targets = soft_targets(self.taught, "identity", kind=self.kind, softening=1.0, mean=False)
        return np.array([[loss(member[None], each[None]).item() for each in targets] for member in self.logits(model)])

    def labelled(self) -> "School":
        mean = soft_targets(self.taught, "identity", kind=self.kind, softening=1.0, mean=True)[0].repeat(REPEATS, 1)
        names, labels = np.array(list(load_model(self.model).config.id2label.values())), mean[:, 0].tolist()
        torch.manual_seed(0)
        if self.kind == "labels":
            drawn = torch.bernoulli(mean) > 0
            labels = drawn[:, 0].int().tolist() if len(names) == 1 else [names[row].tolist() for row in drawn]
        elif self.kind == "classes":
            labels = names[torch.multinomial(mean, 1)[:, 0]].tolist()
        inputs = self.inputs * REPEATS
        if self.task == "tokens":
            ends = np.cumsum([len(words) for words in inputs])
            labels = [labels[end - len(words) : end] for end, words in zip(ends, inputs, strict=True)]
        return replace(self, inputs=inputs, labels=labels)


def make_school(task: str, folder: Path, vit: Path) -> School:
    """A tiny model without dropout, and teachers with other classifiers."""
    rng = np.random.default_rng(0)
    inputs: list[Any] = [" ".join(rng.choice(FILLERS, rng.integers(2, 7))) for _ in range(ROWS)]
    if task == "relevance":
        inputs = [(text, " ".join(rng.choice(FILLERS, 3))) for text in inputs]
    elif task in ("image", "tokens"):
        inputs = (pictures if task == "image" else sentences)(ROWS, 0)[0]
    original = vit if task == "image" else save_checkpoint(folder / "plain")
    original = make_case(task, folder).checkpoint if task in KINDS else original
    paths = [folder / name for name in ("model", *(f"teacher-{member}" for member in OWN))]
    for seed, path in enumerate(paths):
        shutil.copytree(original, path)
        model = load_model(original)
        model.config.update(NO_DROPOUT)
        torch.manual_seed(seed)
        with torch.no_grad():
            model.classifier.weight.add_(0.5 * (seed > 0) * torch.randn_like(model.classifier.weight))
        model.save_pretrained(path)
    return School(task, paths[0], paths[1:], inputs, []).labelled()


@pytest.fixture
def school(request: pytest.FixtureRequest, vit_checkpoint: Path, tmp_path: Path) -> School:
    return make_school(request.param, tmp_path, vit_checkpoint)


@pytest.fixture(scope="module")
def text(vit_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> School:
    return make_school("text", tmp_path_factory.mktemp("text"), vit_checkpoint)


def schools(*tasks: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("school", tasks, indirect=True)


@schools("text", "image", *KINDS)
def test_each_member_comes_nearest_to_its_own_teacher(school: School, tmp_path: Path) -> None:
    bundle = school.bundle(tmp_path / "bundle")
    before = school.distances(load_ensemble(bundle))
    assert school.teach(bundle).improved
    after = school.distances(load_ensemble(bundle))
    assert after.argmin(axis=1).tolist() == OWN
    assert after.diagonal().sum() < 0.5 * before.diagonal().sum()


@pytest.mark.parametrize("members", [1, MEMBERS])
def test_the_mean_teaches_one_model(members: int, text: School, tmp_path: Path) -> None:
    """Several members of equal heads then stay one model."""
    bundle = text.bundle(tmp_path / "bundle", members=members)
    mean = soft_targets(text.taught, "identity", kind="classes", softening=1.0, mean=True)
    before = text.logits(load_ensemble(bundle))
    assert text.teach(bundle, mean_of_teachers=members > 1).improved
    assert {len(tensor) for tensor in shared_form(weights(bundle)).values()} == {1}
    loss = partial(distillation_loss, targets=mean, activation="identity", kind="classes", softening=1.0)
    assert float(loss(text.logits(load_ensemble(bundle)))) < 0.2 * float(loss(before))


@schools("text", "tokens")
def test_a_frozen_trunk_stays_and_its_members_learn(
    school: School, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept activations, where inputs have one view, change nothing."""
    bundle = school.bundle(tmp_path / "bundle")
    before = weights(bundle)
    assert school.teach(bundle, freeze=2, epochs=3, call={"output": tmp_path / "kept"}).frozen == 2
    after = weights(tmp_path / "kept")
    fixed = [name for name in before if name.startswith(("embeddings", "layers.0", "layers.1"))]
    assert all(torch.equal(before[name], after[name]) for name in fixed)
    assert school.distances(load_ensemble(tmp_path / "kept")).argmin(axis=1).tolist() == OWN
    monkeypatch.setattr(tuning_data, "_room", lambda *_: None)
    school.teach(bundle, freeze=2, epochs=3)
    again = {name: tensor for name, tensor in weights(bundle).items() if not name.endswith("qkv.bias")}  # no gradient
    assert all(torch.allclose(tensor, after[name], atol=1e-3) for name, tensor in again.items())


def test_images_move_by_an_eighth_with_reflected_edges() -> None:
    rng = np.random.default_rng(0)
    pixels, moves = rng.random((9, 3, 16, 24), np.float32), rng.integers(-8, 9, (9, 3))
    for before, after, (mirror, down, right) in zip(pixels, views.moved(pixels, moves), moves, strict=True):
        top, left = 2 + round(down * 2 / 8), 3 + round(right * 3 / 8)
        part = np.pad(before, ((0, 0), (2, 2), (3, 3)), "reflect")[:, top : top + 16, left : left + 24]
        np.testing.assert_array_equal(after, part[..., ::-1] if mirror > 0 else part)


@schools("text", "tokens", "image")
def test_kept_logits_are_those_of_hugging_face(school: School, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file a teacher and view in use, a row an input or token; targets of inputs or words, first their mean."""
    read: list[tuple[int, bool]] = []

    def targets(logits: torch.Tensor, *more: Any, mean: bool, **options: Any) -> torch.Tensor:
        read.append((int((~logits.isnan()).sum()), mean))
        return soft_targets(logits, *more, mean=mean, **options)

    monkeypatch.setattr(taught_source, "soft_targets", targets)
    numbers: dict[str, Any] = {"epochs": 2, "views": 3, "mean_epochs": 1, "teacher_outputs": tmp_path / "kept"}
    school.teach(school.bundle(tmp_path / "bundle"), ROWS, **numbers)
    kept = [np.load(file) for file in (tmp_path / "kept" / "teachers").iterdir()]
    units = sum(map(len, school.inputs[:ROWS])) if school.task == "tokens" else ROWS
    assert sum(count for count, _ in read) == 2 * MEMBERS * units * kept[0].shape[1]
    assert [mean for _, mean in read] == [True] * 3 + [False] * 3
    inputs, image, rng = school.inputs[:ROWS], school.task == "image", np.random.default_rng(0)
    assert len(kept) == MEMBERS * (1 if school.task == "tokens" else 2)
    processor = load_processor(school.model, "image" if image else "text")
    if image:
        pixels = processor(images=inputs, return_tensors="np")["pixel_values"]
        pixels = [pixels, views.moved(pixels, rng.integers(-8, 9, (2, ROWS, 3))[1])]
        forms = [[{"pixel_values": torch.tensor(each)}] for each in pixels]
    else:
        words = school.task == "tokens"
        forms = [[processor(each, is_split_into_words=words, return_tensors="pt") for each in inputs] for _ in range(2)]
        masks = [form["attention_mask"][0] for form in forms[1]]
        hidden = torch.tensor(rng.random((2, sum(map(len, masks)))) < 0.15)[1].split([len(mask) for mask in masks])
        for mask, places in zip(masks, hidden, strict=True):
            mask[1:-1][places[1:-1]] = 0
    for teacher, form in product(school.teachers, forms[: 1 if school.task == "tokens" else 2]):
        with torch.no_grad():
            model = load_model(teacher)
            expected = np.concatenate([model(**batch).logits.flatten(0, -2).numpy() for batch in form])
        assert any(each.shape == expected.shape and np.allclose(each, expected, atol=1e-4) for each in kept)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the teachers that ran, one a batch."""
    names: list[str] = []
    run = taught_source.TaughtSource._run

    def counted(source: Any, model: Any, teacher: Any, *rest: Any) -> Any:
        names.append(teacher.name)
        return run(source, model, teacher, *rest)

    monkeypatch.setattr(taught_source.TaughtSource, "_run", counted)
    return names


def test_teachers_run_once(text: School, runs: list[str], tmp_path: Path) -> None:
    """Neither other members nor batch sizes run them again; other data or another teacher does."""
    kept = partial(text.teach, rows=ROWS, teacher_outputs=tmp_path / "kept", epochs=1, views=1)
    kept(text.bundle(tmp_path / "bundle"))
    files = state(tmp_path / "kept")
    kept(text.bundle(tmp_path / "again"), call={"reading": Reading(batch_size=3)})
    kept(single := text.bundle(tmp_path / "single", members=1), teachers=text.teachers[1:])
    assert runs == [f"teacher-{member}" for member in OWN for _ in range(0, ROWS, 16)]
    kept(single, teachers=[text.model])
    kept(single, teachers=text.teachers[:1], rows=ROWS - 16)
    assert runs[MEMBERS * 3 :] == ["model"] * 3 + ["teacher-0"] * 2
    assert files.items() < state(tmp_path / "kept").items()


def test_an_interrupted_tuning_resumes(text: School, runs: list[str], tmp_path: Path) -> None:
    """In the teachers' pass and in an epoch; each batch of a teacher runs once, and the weights are the same."""
    bundle = text.bundle(tmp_path / "bundle")
    learn = partial(text.teach, bundle, ROWS, epochs=2)
    expected, count, before = learn(call={"output": tmp_path / "whole"}), len(runs), state(bundle)
    call = {"output": tmp_path / "out"}
    for part in ("running", "epoch"):
        with pytest.raises(KeyboardInterrupt):
            learn(state=tmp_path / "part", call={**call, "progress": interrupted_after(4, part)})
    assert learn(state=tmp_path / "part", call=call).history == expected.history
    assert len(runs) == 2 * count
    assert same(weights(tmp_path / "out"), weights(tmp_path / "whole"))
    assert state(bundle) == before
    assert not (tmp_path / "part").exists()


@schools("tokens")
def test_unlabelled_rows_teach(school: School, tmp_path: Path) -> None:
    """Two labelled rows alone teach less about the others than with a file of these, which has no labels."""
    distances = []
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps({'tokens': each})}\n" for each in school.inputs))
    for name, file in (("few", None), ("all", tmp_path / "rows.jsonl")):
        bundle = school.bundle(tmp_path / name)
        report = school.teach(bundle, 2, unlabelled=file)
        distances.append(school.distances(load_ensemble(bundle)).diagonal())
    assert (report.examples, report.unlabelled) == (2, len(school.inputs))
    assert f"2 examples of given in memory and {report.unlabelled} unlabelled inputs" in tune_text(report)
    assert distances[1].sum() < 0.5 * distances[0].sum()


@pytest.mark.parametrize(("school", "fork", "pruned"), [
    ("text", None, False), ("image", 1, False), ("image", None, True),
], indirect=["school"])  # fmt: skip
def test_the_cost_of_own_linear_maps_is_the_graphs(
    school: School, fork: int | None, pruned: bool, tmp_path: Path
) -> None:
    """Own maps begin at the plan's fork, else in the last layer, or where chosen; the bundle tunes and exports on."""
    family, first = "vit" if school.task == "image" else "bert", fork or (1 if pruned else LAYERS - 1)
    bundle = school.bundle(tmp_path / "bundle", support.random_plan(family, MEMBERS, fork=1) if pruned else None)
    assert school.teach(bundle, 2 * ROWS, fork_from=fork).improved
    assert assert_cost(bundle, make_inputs(family)).fork == first
    own = {name for name, tensor in shared_form(weights(bundle)).items() if len(tensor) == MEMBERS}
    assert {name.split(".")[1] for name in own if name.startswith("layers")} == set(map(str, range(first, LAYERS)))
    with hydrant.load(bundle) as graph, hydrant.load(bundle, backend="torch") as module:
        one, other = (each.predict(school.inputs[:ROWS]).probabilities for each in (graph, module))
    np.testing.assert_allclose(one, other, atol=1e-5)
    tune(bundle, (school.inputs[:ROWS], school.labels[:ROWS]), Jointly(epochs=1), reading=READING)
    hydrant.export_onnx(bundle, "fp16")
    assert hydrant.verify(bundle, reading=Reading(examples=8)).passed


def test_teachers_of_other_shapes_and_families(text: School, tmp_path: Path) -> None:
    """A deeper, wider one that reads longer texts, one without token types, and one that only tracing supports."""
    names, kind = support.named("abcde"), transformers.DebertaV2ForSequenceClassification
    larger = make_model("bert", num_hidden_layers=5, hidden_size=64, max_position_embeddings=60, **names)
    traced = support.randomized(kind(kind.config_class(**{**DEBERTA_V3, **names, "num_labels": 5})))
    others = {"bert": larger, "distilbert": make_model("distilbert", **names), "deberta": traced}
    teachers = [tmp_path / family for family in others]
    for teacher, (family, model) in zip(teachers, others.items(), strict=True):
        tokenizer = transformers.DistilBertTokenizer if family == "distilbert" else transformers.BertTokenizer
        tokenizer(vocab=str(text.model / "source" / "vocab.txt"), model_max_length=40).save_pretrained(teacher)
        model.save_pretrained(teacher)
    school = replace(text, teachers=teachers, inputs=text.inputs[:ROWS]).labelled()
    assert school.teach(bundle := school.bundle(tmp_path / "bundle")).improved
    assert school.distances(load_ensemble(bundle)).argmin(axis=1).tolist() == OWN


def bert(labels: str = "abcde", **settings: Any) -> Any:
    return make_model("bert", **support.named(labels), **settings)


ODD: list[tuple[str, str, Callable[[Path], list[Any]]]] = [
    ("text", "odd.*classes.*e, z", lambda _: [bert("abcdz")]),
    ("text", "odd.*order", lambda _: [bert("abced")]),
    ("text", "odd.*multi_label", lambda _: [bert(problem_type="multi_label_classification")]),
    ("text", "odd.*longest text", lambda folder: [bert(max_position_embeddings=20), support.make_tokenizer(folder)]),
    ("text", "odd.*vocab", lambda folder: [bert(), make_word_tokenizer(folder / "a")]),
    ("text", "odd", lambda _: [support.make_dual_encoder()]),
    ("text", "odd.*does not exist", lambda _: []),
    ("text", "odd is a bundle", lambda _: [fuse(make_model("bert"))]),
    ("image", "odd.*resize", lambda _: [
        make_model("vit", image_size=16), transformers.ViTImageProcessorPil(size={"height": 16, "width": 16})]),
    ("image", "odd.*cannot read", lambda _: [make_model("vit", image_size=16)]),
    ("regression", "odd.*sigmoid", lambda _: [make_model("bert", num_labels=1, sentence_transformers=SIGMOID)]),
]  # fmt: skip


@pytest.mark.parametrize(("school", "message", "make"), ODD, indirect=["school"], ids=[each[1] for each in ODD])
def test_an_odd_teacher_is_refused(school: School, message: str, make: Any, tmp_path: Path) -> None:
    bundle, place = school.bundle(tmp_path / "bundle"), tmp_path / "odd"
    for each in make(tmp_path):
        save_bundle(each, place) if isinstance(each, FusedClassifier) else each.save_pretrained(place)
    before = state(bundle)
    with pytest.raises(InputError, match=message):
        school.teach(bundle, ROWS, teachers=[*school.teachers[:2], place])
    assert state(bundle) == before


def test_options_that_do_not_fit_are_refused(text: School, tmp_path: Path) -> None:
    """Unlabelled inputs of another kind, a file in place of a folder, and members of several checkpoints."""
    bundle, file = text.bundle(tmp_path / "bundle"), write_csv(tmp_path / "train.csv", ([], []))
    several = save_bundle(fuse(text.teachers, keep_separate="all"), tmp_path / "several").path
    cases: list[tuple[str, Path, dict[str, Any]]] = [
        ("pairs", bundle, {"unlabelled": [("hello", "is")]}), ("expected a table", bundle, {"unlabelled": tmp_path}),
        ("teacher_outputs", bundle, {"teacher_outputs": file}), ("several checkpoints", several, {}),
    ]  # fmt: skip
    before = state(bundle)
    for message, path, options in cases:
        with pytest.raises(InputError, match=message):
            text.teach(path, ROWS, **options)
    assert state(bundle) == before


def test_the_command_refuses(
    text: School, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = state(text.bundle(tmp_path / "bundle"))
    for name in ("train.csv", "more.csv"):
        write_csv(tmp_path / name, (text.inputs, text.labels))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(text.model)
    three = ["--teachers", "model", "model", "model"]
    for words in (three[:-1], [*three[:-1], "nowhere"], [*three, "--batch-ensemble"], ["--unlabelled", "train.csv"],
                  [*three, "--unlabelled", "more.csv", "--validation", "./more.csv"]):  # fmt: skip
        assert cli.main(["tune", "bundle", "--data", "train.csv", *words]) == 2
        assert re.fullmatch(r"hydrant: error: [^\n]+\n", capsys.readouterr().err)
    assert state(tmp_path / "bundle") == before


def test_the_command_teaches(text: School, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unlabelled rows come from a file; the manifest names the teachers."""
    monkeypatch.chdir(tmp_path)
    text.bundle(tmp_path / "bundle")
    for name, rows in (("train.csv", 5 * ROWS), ("validation.csv", None)):
        write_csv(tmp_path / name, (text.inputs[:rows], text.labels[:rows]))
    (tmp_path / "rows.csv").write_text("\n".join(["text", *text.inputs]))
    words = ["--unlabelled", "rows.csv", "--validation", "validation.csv", "-o", "taught", "--learning-rate", "3e-3"]
    assert cli.main(["tune", "bundle", "--data", "train.csv", *words, "--teachers", *map(str, text.teachers)]) == 0
    facts = json.loads((tmp_path / "taught" / "hydrant.json").read_text())["fusion"]["tuned"]
    assert [each["name"] for each in facts["teachers"]] == [each.name for each in text.teachers]
    assert facts["unlabelled"] == len(text.inputs)
    card = model_card(Bundle.open(tmp_path / "taught"), "owner/name")
    assert "hydrant tune out/ --teachers teacher-0 teacher-1 teacher-2 --data train.csv" in card
    assert text.distances(load_ensemble(tmp_path / "taught")).argmin(axis=1).tolist() == OWN


def test_prepared_tensors_with_padding_before_them_teach(text: School, tmp_path: Path) -> None:
    """Views hide tokens of inputs in which the mask hides some already."""
    tensors = {name: tensor.flip(1).numpy() for name, tensor in make_inputs("bert", batch=ROWS).items()}
    data = (tensors, text.labels[:ROWS])
    how = Taught(teachers=text.teachers, epochs=2)
    report = tune(text.bundle(tmp_path / "bundle"), data, how, validation=data, reading=READING)
    assert report.epochs == 2
