"""The page of ``hydrant serve``: its files, its routes, and the page in Chromium with a real service."""

import base64
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import hydrant
import numpy as np
import pytest
import torch
from browser import CHROMIUM, Browser
from hydrant.bundle.store import CALIBRATION
from hydrant.bundle.strict_json import to_json_bytes
from hydrant.serving import page
from hydrant.serving.page import SHOWN, explanations, facts_of
from PIL import Image
from serve_support import Running, command, make_bundle, picture, running
from support import make_model, make_tokenizer, named
from test_labels import make_labeller
from token_support import make_tagger, make_word_tokenizer

HOSTILE = "<img src=x onerror=\"document.title='broken'\">"
LABELS = [HOSTILE, "</script><script>document.title='broken'</script>", "w & t", "d" * 300, "e\u202etxt", *"fghijk"]
TEXTS = ["transfer money today", "what is the weather", f"hello {HOSTILE}"]
TOKEN = "a-token-for-tests"
SINGLE = ("images", "labels", "score", "tags")


def fused(folder: Path, model: torch.nn.Module, tokenizer: Any) -> None:
    """A bundle of three members with a graph."""
    source = folder.parent.parent / f"{folder.parent.name}-{folder.name}"
    model.save_pretrained(source)
    tokenizer.save_pretrained(source)
    hydrant.export_onnx(make_bundle(source, folder, "text", 3, 2), form=hydrant.GraphForm(member_outputs=True))


def limited(folder: Path, **limits: dict[str, Any]) -> None:
    """Set the thresholds of a bundle by hand, for known decisions."""
    bundle = hydrant.Bundle.open(folder)
    bundle = bundle.add({CALIBRATION: to_json_bytes({**bundle.calibration(), "thresholds": limits})})
    hydrant.export_onnx(bundle, form=hydrant.GraphForm(member_outputs=True))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, vit_checkpoint: Path) -> Path:
    """Models of every task, the first in two versions."""
    root = tmp_path_factory.mktemp("page")
    folder = root / "models"
    tokenizer = make_tokenizer(root / "source")
    for version in (1, 2):
        model = make_model("bert", version, num_labels=len(LABELS), **named(LABELS))
        fused(folder / "intents" / str(version), model, tokenizer)
    measured: dict[str, Any] = {"measured": {}, "n": 9}
    always = {"score": "confidence", "side": "below", "value": 1.0, "target": {"coverage": 0.95}, **measured}
    never = {"score": "energy", "side": "above", "value": 1e6, "target": {"false_alarm": 0.05}, **measured}
    limited(folder / "intents/2", abstain=always, ood=never)
    fused(folder / "score" / "1", make_model("bert", num_labels=1), tokenizer)
    fused(folder / "labels" / "1", make_labeller(num_labels=3), tokenizer)
    fused(folder / "tags" / "1", make_tagger(), make_word_tokenizer(root / "words"))
    make_bundle(vit_checkpoint, folder / "images" / "1", "image", 3, 2)
    return folder


@pytest.fixture(scope="module")
def service(models: Path) -> Iterator[Running]:
    with running(models) as service:
        yield service


def test_files_name_no_other_server_and_parse_no_markup() -> None:
    names = {path.name for path in page.FOLDER.iterdir()} - {page.START}
    assert set(page.FILES) == {"/", *(f"/static/{name}" for name in names)}
    for file in page.FILES.values():
        text = file.body.decode()
        assert re.findall(r"(?:https?:)?//[a-z][\w.-]+\.\w+", text.replace("http://www.w3.org/2000/svg", "")) == []
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text)
    markup = page.FILES["/"].body.decode()
    assert re.findall(r"\son\w+\s*=|\sstyle\s*=|javascript:", markup) == []
    links = re.findall(r'(?:href|src)="([^"]*)"', markup)
    assert len(links) == 5
    assert all(address == "./" or f"/{address}" in page.FILES for address in links)
    for script in (file.body.decode() for address, file in page.FILES.items() if address.endswith(".js")):
        assert not re.search(r"[\"'`]/(?:v2|predict|explain|describe|stats|static)", script), "works behind a prefix"
        for other in re.findall(r'from "\./([\w.]+)"', script):
            assert f"/static/{other}" in page.FILES
    assert sum(len(file.body) for file in page.FILES.values()) < 80_000


def test_files_have_a_policy_and_an_etag(service: Running) -> None:
    for address, file in page.FILES.items():
        answer = service.client.get(address)
        assert (answer.status_code, answer.content) == (200, file.body), address
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert {policy[name] for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        again = service.client.get(address, headers={"if-none-match": answer.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
    for wrong in ("static/page.py", "static/../page.py", "static/%2e%2e/page.py", "static/index.html", "static"):
        assert service.client.get(f"/{wrong}").status_code == 404, wrong


def test_files_need_no_token_and_models_do(models: Path) -> None:
    with running(models, token=TOKEN) as closed, httpx.Client(base_url=closed.url) as stranger:
        for address in page.FILES:
            assert stranger.get(address).status_code == 200
        assert stranger.get("/describe").status_code == 401
        assert stranger.post("/explain", json={"inputs": ["hello"], "model": "score"}).status_code == 401
        assert closed.client.get("/describe").status_code == 200


def test_models_are_described(service: Running, models: Path) -> None:
    service.verb("models/intents/load", version="1", keep=True)
    try:
        description = service.client.get("/describe").json()
    finally:
        service.verb("models/intents/load", version="2")
    assert description["version"] == hydrant.__version__
    described = {(each["name"], each["version"]): each for each in description["models"]}
    assert sorted(described) == sorted([("intents", "2"), *((name, "1") for name in (*SINGLE, "intents"))])
    assert described["intents", "1"]["current"]
    assert not described["intents", "2"]["current"]
    two = described["intents", "2"]
    assert (two["labels"], two["members"], two["task"], two["modality"]) == (LABELS, 3, "classification", "text")
    assert two["thresholds"]["abstain"]["value"] == 1.0
    assert [described[name, "1"]["task"] for name in ("score", "labels", "tags")] == ["score", "multi_label", "tokens"]
    with hydrant.load(models / "score/1", threads=1) as predictor:
        facts = json.loads(json.dumps(facts_of(predictor)))
    assert {name: described["score", "1"][name] for name in facts} == facts


@pytest.mark.parametrize("name", ["intents/2", "score/1", "labels/1", "tags/1"])
def test_an_explanation_has_the_row_and_the_members(service: Running, models: Path, name: str) -> None:
    """Rows as ``/predict`` returns them, and members as the PyTorch backend computes them."""
    model, _, version = name.partition("/")
    answer = service.client.post("/explain", json={"inputs": TEXTS, "model": model, "version": version}).json()
    assert (answer["model"], answer["version"]) == (model, version)
    rows = service.ask(*TEXTS, model=model).json()["predictions"]
    assert [each["row"].keys() for each in answer["explanations"]] == [row.keys() for row in rows]
    with hydrant.load(models / name, backend="torch") as reference:
        prediction = reference.predict(TEXTS)
        for place, explanation in enumerate(answer["explanations"]):
            assert explanation["row"]["input"] == TEXTS[place]
            if model == "score":
                assert explanation["members"] == pytest.approx(prediction.member_scores[place].tolist(), abs=1e-4)
            elif model == "tags":
                check_words(explanation, prediction, reference, place)
            else:
                check_classes(explanation, prediction, reference, place)


def check_classes(explanation: Any, prediction: Any, reference: Any, place: int) -> None:
    means, each = prediction.probabilities[place], prediction.member_probabilities[place]
    labels = reference.labels
    assert [one["label"] for one in explanation["classes"]] == [labels[i] for i in np.argsort(-means)[:SHOWN]]
    for one in explanation["classes"]:
        index = labels.index(one["label"])
        assert one["probability"] == pytest.approx(means[index], abs=1e-4)
        assert one["members"] == pytest.approx(each[:, index].tolist(), abs=1e-4)
        if reference.task == "multi_label":
            assert (one["threshold"], one["assigned"]) == (0.5, bool(means[index] > 0.5))
    shown = sum(one["probability"] for one in explanation["classes"])
    assert explanation["others"]["count"] == max(0, len(labels) - SHOWN)
    assert explanation["others"]["probability"] == pytest.approx(means.sum() - shown, abs=1e-4)
    check_members(explanation["members"], each, labels)


def check_members(members: Any, probabilities: np.ndarray, labels: Any) -> None:
    assert [one["label"] for one in members] == [labels[i] for i in probabilities.argmax(axis=1)]
    assert [one["confidence"] for one in members] == pytest.approx(probabilities.max(axis=1).tolist(), abs=1e-4)


def check_words(explanation: Any, prediction: Any, reference: Any, place: int) -> None:
    words = explanation["row"]["words"]
    assert len(explanation["members"]) == len(words)
    owners = prediction.words[place]
    for word, members in zip(words, explanation["members"], strict=True):
        first = int(np.flatnonzero(owners == word["word"])[0])
        check_members(members, prediction.member_probabilities[place][:, first], reference.labels)


def test_invalid_inputs_have_an_error_in_their_row(service: Running, models: Path) -> None:
    data = base64.b64encode(picture()).decode()
    answer = service.client.post("/explain", json={"inputs": [{"image": data}, "AAAA"], "model": "images"}).json()
    good, bad = answer["explanations"]
    assert good["members"] is None
    assert all(one["members"] is None for one in good["classes"])
    assert "cannot" in bad["row"]["error"]
    with hydrant.load(models / "score/1", threads=1) as predictor:
        assert explanations(predictor, predictor.predict([]), []) == []


@pytest.fixture(scope="module")
def address(models: Path) -> Iterator[str]:
    """``hydrant serve`` in a separate process."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    with command(models) as (_, ready):
        yield f"http://127.0.0.1:{ready['port']}/"


@pytest.fixture(scope="module")
def browser(address: str) -> Iterator[Browser]:
    with Browser() as browser:
        browser.visit(address)
        browser.until("document.getElementById('state-text').textContent === 'Ready'")
        yield browser


def choose(browser: Browser, model: str) -> None:
    browser.run(
        f"(() => {{ const list = document.getElementById('model'); list.value = {json.dumps(model)};"
        "list.dispatchEvent(new Event('change')) })()"
    )


def ask(browser: Browser, text: str) -> None:
    """Replace the text in the field, and press Ctrl + Enter."""
    browser.run("(() => { const field = document.getElementById('text'); field.focus(); field.select() })()")
    browser.type(text)
    browser.press("Enter", 13, 2)
    browser.until("document.getElementById('answer').getAttribute('aria-busy') === 'false'")


def texts(browser: Browser, selector: str) -> Any:
    return browser.run(f"[...document.querySelectorAll({json.dumps(selector)})].map((each) => each.textContent)")


WIDTHS = """[...document.querySelectorAll(".row .fill")].map((bar) =>
  bar.getBoundingClientRect().width / bar.parentNode.getBoundingClientRect().width)"""


def test_a_text_is_answered_with_bars_limits_and_members(browser: Browser, models: Path) -> None:
    choose(browser, "intents")
    ask(browser, TEXTS[0])
    with hydrant.load(models / "intents/2", threads=1) as predictor:
        prediction = predictor.predict([TEXTS[0]])
        label = predictor.labels[prediction.label[0]]
    assert texts(browser, ".head .label") == [label]
    assert texts(browser, ".sure b") == [f"{float(f'{100 * prediction.confidence[0]:.1f}'):g} %"]
    assert "Abstains" in texts(browser, ".pill")[0]
    assert f"Confidence {prediction.confidence[0]:.3f} is below 1.000." in " ".join(texts(browser, ".why li"))
    assert browser.run("document.querySelector('#answer-body .answered .sign')") is None, "one verdict, not two"
    assert texts(browser, ".row .what b")[:2] == ["Confidence", "Predictive entropy"]
    widths = browser.run(WIDTHS)
    assert widths[0] == pytest.approx(prediction.confidence[0], abs=0.02)
    assert widths[1] == pytest.approx(prediction.predictive_entropy[0] / np.log(len(LABELS)), abs=0.02)
    assert len(texts(browser, ".members li")) == 3
    assert "abstains below 1.000" in texts(browser, ".bound")
    assert texts(browser, "#spoken")[0].endswith("Abstains: too uncertain.")


TRAFFIC = """import("./static/traffic.js").then(({ traffic }) => {
  const series = [{ago: 3, inputs: 10, abstain: 5}, {ago: 595, inputs: 10, abstain: 0}];
  const spread = {edges: [1, 2], calibrated: [10, 10, 20], recent: [0, 0, 4], psi: 0.5};
  const model = {name: "m", version: "1", totals: {inputs: 20, failed: 1, abstain: 5}, series,
    latency: {median: 0.004, p99: 0.02}, rates: {calibrated: {abstain: 0.05}}, histograms: {distance: spread},
    drift: {alarms: [{text: "<b>hostile</b>"}]}};
  const facts = {name: "m", version: "1", thresholds: {ood: {score: "distance", side: "above", value: 1.5}}};
  let note = "";
  const box = document.createElement("div");
  const say = (text) => { note = text; };
  const draw = (stats) => box.replaceChildren(...traffic(stats, facts, say, true).filter(Boolean));
  draw({models: [model]});
  const drawn = {note, text: box.innerText, words: [...box.querySelectorAll("svg")].map((each) => each.ariaLabel),
    limit: Number(box.querySelector(".histogram .mark").getAttribute("x1")),
    curves: [...box.querySelectorAll(".tile:nth-child(2) .curve")].map((each) => each.getAttribute("points")),
    markup: box.querySelectorAll("b").length};
  draw({models: []});
  drawn.empty = box.innerText;
  return drawn;
})"""


def test_traffic_is_drawn_beside_calibration(browser: Browser) -> None:
    drawn = browser.run(TRAFFIC)
    assert "<b>hostile</b>" in drawn["text"]
    assert drawn["markup"] == 0
    for words in ("25 %", "5 % of calibration data", "4.00 ms; 99 % within 20.0 ms"):
        assert words in drawn["text"]
    assert "100 % above 2.00, calibration 50 %" in drawn["words"][-1]
    assert drawn["limit"] == 150  # in the middle of the second of three bins, of 300 in all
    assert drawn["curves"] == ["-1.0,60.0 1.0,60.0", "299.0,0.0 301.0,0.0"]  # gaps without inputs
    assert "No requests yet" in drawn["empty"]


def test_hostile_texts_and_labels_stay_texts(browser: Browser) -> None:
    choose(browser, "intents")
    ask(browser, TEXTS[2])
    ask(browser, HOSTILE * 40)
    assert browser.run("document.title") == "hydrant"
    assert browser.run("[...document.images].every((each) => !each.src || each.src.startsWith(location.origin))")
    assert browser.run("document.scripts.length") == 1
    assert any(HOSTILE in text for text in texts(browser, ".earlier .input"))
    assert browser.run("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("model", ["score", "labels", "tags"])
def test_the_other_tasks_are_shown(browser: Browser, models: Path, model: str) -> None:
    choose(browser, model)
    text = "anna smith lives in paris \U0001f600 and rome" if model == "tags" else TEXTS[1]
    ask(browser, text)
    shown = browser.run("document.getElementById('answer').innerText")
    assert "No thresholds are set" in shown
    if model == "score":
        assert "between members" in shown
        assert len(texts(browser, ".axis .dot")) == 3
    elif model == "labels":
        assert len(texts(browser, ".class")) == 3
        assert len(texts(browser, ".class .dot")) == 9
    else:
        with hydrant.load(models / "tags/1", threads=1) as predictor:
            (row,) = predictor.rows(predictor.predict([text]), [text])
        assert texts(browser, "mark") == [span["text"] + span["label"] for span in row["spans"]]
        assert len(texts(browser, ".block tbody tr")) == len(row["words"])


DROP = """(() => {
  const bytes = Uint8Array.from(atob("DATA"), (each) => each.charCodeAt(0));
  const held = new DataTransfer();
  held.items.add(new File([bytes], "cat.png", {type: "image/png"}));
  const event = new DragEvent("drop", {dataTransfer: held, bubbles: true, cancelable: true});
  document.getElementById("drop").dispatchEvent(event);
})()"""


def test_an_image_is_dropped(browser: Browser) -> None:
    choose(browser, "images")
    data = base64.b64encode(picture()).decode()
    browser.run(DROP.replace("DATA", data))
    browser.until("document.querySelector('.head .label')?.textContent.startsWith('LABEL_')")
    assert "--member-outputs" in browser.run("document.getElementById('answer').innerText")
    assert browser.run("document.getElementById('preview').naturalWidth") == 16


def test_colors_widths_names_and_requests(browser: Browser, address: str) -> None:
    choose(browser, "score")
    ask(browser, TEXTS[0])
    browser.until("document.querySelector('#traffic-body .tile .value')?.textContent > '0'")
    assert "no reference" in texts(browser, ".legend")[0]
    for scheme, width in (("light", 1280), ("dark", 360)):
        browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        browser.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        data = browser.call("Page.captureScreenshot", format="png")["data"]
        pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("L"), np.float64)
        assert (pixels.mean() > 128) == (scheme == "light")
        assert browser.run("document.documentElement.scrollWidth <= innerWidth")
    browser.call("Emulation.clearDeviceMetricsOverride")
    unnamed = browser.run(
        "[...document.querySelectorAll('input, select, textarea, button')].filter((each) => "
        "!each.labels?.length && !each.textContent.trim() && !each.ariaLabel).map((each) => each.id)"
    )
    assert unnamed == []
    assert len(browser.requests) > 10
    assert all(each.startswith((address, "blob:" + address, "about:")) for each in browser.requests)
    assert browser.complaints == []
