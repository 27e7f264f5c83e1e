"""Former options: renamed ones work for one version, with a warning; rare ones are set from Python alone."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..errors import InputError

READ_BY = ("make", "plan", "fuse", "tune", "calibrate", "evaluate", "export", "verify", "predict")
"""Commands that have ``--read``."""

RENAMED = {
    "--text-column": "text",
    "--text-pair-column": "text_pair",
    "--label-column": "label",
    "--examples": "examples",
    "--batch-size": "batch_size",
}
"""Former options by the name that ``--read`` has for them."""

KEPT = {("predict", "--batch-size")}

PYTHON_ONLY = {
    "plan": {
        "--diversity": "hydrant.calib.Taylor(diversity=…)",
        "--noise": "hydrant.calib.Taylor(noise=…)",
        "--rate": "hydrant.calib.Dropout(rate=…)",
        "--objective": "hydrant.calib.Circuit(objective=…)",
        "--masking": "hydrant.calib.Circuit(masking=…)",
        "--average": "hydrant.calib.Circuit(average=True)",
        "--forks": "hydrant.workflow.Grid(forks=…)",
        "--heads": "hydrant.workflow.Grid(heads=…)",
        "--epochs": "hydrant.workflow.Grid(tuning=…)",
    },
    "tune": {
        "--weight-decay": "hydrant.tuning.Jointly(weight_decay=…)",
        "--warmup": "hydrant.tuning.Jointly(warmup=…)",
        "--patience": "hydrant.tuning.Jointly(patience=…)",
        "--device": "hydrant.tuning.Jointly(device=…)",
        "--deviation": "hydrant.tuning.BatchEnsemble(deviation=…)",
        "--factors-only": "hydrant.tuning.BatchEnsemble(factors_only=True)",
    },
    "make": {
        "--learning-rate": "hydrant.workflow.Recipe(learning_rate=…)",
        "--mixed-precision": "hydrant.workflow.Recipe(mixed_precision=True)",
    },
    "build": {
        "--optimization-level": "hydrant.build.TensorRT(optimization_level=…)",
        "--workspace": "hydrant.build.TensorRT(workspace=…)",
        "--refit": "hydrant.build.TensorRT(refit=True)",
        "--version-compatible": "hydrant.build.TensorRT(version_compatible=True)",
        "--log": "hydrant.build_engine(log_file=…)",
        "--timing-cache": "hydrant.build.TensorRT(timing_cache=…)",
    },
    "fuse": {"--low-rank": "hydrant.fuse(low_rank=…)"},
    "export": {"--attention": "hydrant.GraphForm(attention=…)"},
    "profile": {"--iterations": "hydrant.evaluation.Timing(iterations=…)"},
    "calibrate": {"--conformal-method": "hydrant.calib.Conformal(method=…)"},
    "evaluate": {
        "--corrupted": "hydrant.EvaluationOptions(corrupted=…)",
        "--neighbours": "hydrant.EvaluationOptions(neighbours=…)",
        "--caution": "hydrant.EvaluationOptions(caution=…)",
    },
    "predict": {
        "--actor-cpus": "hydrant.runtime.offline.ray_engine.Actors(actor_cpus=…)",
    },
    "serve": {
        flag: f'--settings FILE, a JSON object with "{name}"'
        for flag, name in {
            "--origin": "origins", "--requests": "requests", "--alpha": "alpha", "--psi": "psi",
            "--window": "window", "--record-rate": "record_rate", "--record-bytes": "record_bytes",
            "--record-redact": "record_redact", "--replica-cpus": "replica_cpus", "--replica-gpus": "replica_gpus",
        }.items()
    },
    "triton": {
        "--queue-delay": "hydrant.serving.triton.TritonSettings(queue_delay=…)",
        "--instances": "hydrant.serving.triton.TritonSettings(instances=…)",
        "--threads": "hydrant.serving.triton.TritonSettings(threads=…)",
        "--environment": "hydrant.serving.triton.TritonSettings(environment=…)",
        "--linked": "hydrant.serving.triton.TritonSettings(linked=True)",
    },
}  # fmt: skip
"""Options that left the command line, by command, and where they are set now."""


def current(arguments: Sequence[str]) -> list[str]:
    """A command line with the names of today.

    Raises:
        InputError: an option left the command line.
    """
    command, words = next(iter(arguments), ""), iter(arguments)
    result: list[str] = []
    for word in words:
        flag, equals, value = word.partition("=")
        if word == "--":
            return [*result, word, *words]
        if flag in PYTHON_ONLY.get(command, {}):
            place = PYTHON_ONLY[command][flag]
            place = place if place.startswith("--") else f"{place} in Python"
            raise InputError(f"{flag} is no longer an option of hydrant {command}; use {place}")
        if command in READ_BY and flag in RENAMED and (command, flag) not in KEPT:
            value = value if equals else next(words, "")
            print(f"hydrant: warning: {flag} is now --read {RENAMED[flag]}={value}", file=sys.stderr)
            result += ["--read", f"{RENAMED[flag]}={value}"]
        else:
            result.append(word)
    return result
