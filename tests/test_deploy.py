"""The recipes in examples/deploy, checked with the command line's parser and a running service."""

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from hydrant.cli.command_options import call
from hydrant.cli.main import parse
from hydrant.serving.serve_settings import ServeSettings
from serve_support import Running, make_bundle, running

CHECKOUT = Path(__file__).parents[1]
FOLDER = CHECKOUT / "examples" / "deploy"
TOKEN = "a-token-for-tests"


@pytest.fixture(scope="module")
def service(bert_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with a token, as in the recipes."""
    folder = tmp_path_factory.mktemp("deployed") / "models"
    make_bundle(bert_checkpoint, folder / "a" / "1")
    with running(folder, token=TOKEN) as service:
        yield service


def settings_of(words: list[str]) -> tuple[Any, ServeSettings]:
    """The options and settings of a ``hydrant serve`` command line."""
    assert words[0] == "serve"
    options = parse(words)
    return options, call(ServeSettings, options)


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text()))


def kinds(name: str) -> dict[str, dict[str, Any]]:
    return {each["kind"]: each for each in documents(name)}


def instructions() -> list[tuple[str, str]]:
    """Instructions of the Dockerfile, with their arguments, in order."""
    text = re.sub(r"^#.*\n", "", (FOLDER / "Dockerfile").read_text(), flags=re.M)
    lines = [line for line in re.sub(r"\\\n\s*", "", text).splitlines() if line.strip()]
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1].strip()) for line in lines]


def test_the_image_installs_the_package_and_runs_it_as_nobody() -> None:
    lines = instructions()
    words = [word for word, _ in lines]
    assert words.count("FROM") == 2
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    version = re.search(r"python:(\d+\.\d+)-slim", dict(lines)["FROM"])
    assert project["requires-python"] == f">={version[1]}"
    last = lines[len(words) - 1 - words[::-1].index("FROM") :]
    named = dict(last)
    user, group = named["USER"].split(":")
    assert int(user) > 0
    assert f"--uid {user}" in named["RUN"]
    assert f"--gid {group}" in named["RUN"]
    command = json.loads(named["ENTRYPOINT"]) + json.loads(named["CMD"])
    assert command[0] in project["scripts"]
    options, settings = settings_of(command[1:])
    assert str(options.folder) == named["VOLUME"]
    assert (settings.host, f"{settings.port} {settings.grpc_port}") == ("0.0.0.0", named["EXPOSE"])


def container_of(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The pod and its only container."""
    if name == "kserve.yaml":
        (document,) = documents(name)
        pod = document["spec"]["predictor"]
    else:
        pod = kinds(name)["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return pod, container


@pytest.mark.parametrize("name", ["kubernetes.yaml", "kserve.yaml"])
def test_probes_need_no_token(service: Running, name: str) -> None:
    _, container = container_of(name)
    port, *further = container["ports"]
    _, settings = settings_of(container["args"])
    assert settings.port == port["containerPort"]
    assert [each["containerPort"] for each in further] == ([] if settings.grpc_port is None else [settings.grpc_port])
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        request = container[probe]["httpGet"]
        assert request["port"] in (port["name"], port["containerPort"])
        assert httpx.get(f"{service.url}{request['path']}").status_code == 200
    assert container["livenessProbe"]["httpGet"]["path"].endswith("/live")
    assert container["readinessProbe"]["httpGet"]["path"].endswith("/ready")


def test_alerts_use_existing_metrics(service: Running) -> None:
    (scrape,) = documents("prometheus.yaml")[0]["scrape_configs"]
    service.ask("hello world", model="a")
    answer = service.client.get(scrape["metrics_path"])
    assert answer.status_code == 200
    types = dict(re.findall(r"^# TYPE (\w+) (\w+)$", answer.text, flags=re.M))
    names = {f"{name}{end}" if kind == "histogram" else name for name, kind in types.items() for end in ("", "_bucket")}
    (group,) = documents("alerts.yaml")[0]["groups"]
    used = {name for rule in group["rules"] for name in re.findall(r"\bhydrant_\w+", rule["expr"])}
    assert len(used) >= 6
    assert used <= names
    assert documents("prometheus.yaml")[0]["rule_files"] == ["alerts.yaml"]
    assert len({rule["alert"] for rule in group["rules"]}) == len(group["rules"])
