"""Former options: renamed ones still work, with a warning; rare ones moved to Python."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..errors import InputError

READ_BY = ("make", "plan", "fuse", "tune", "calibrate", "evaluate", "export", "verify", "predict")

RENAMED = {
    "--text-column": "text", "--text-pair-column": "text_pair", "--label-column": "label",
    "--examples": "examples", "--batch-size": "batch_size",
}  # fmt: skip

PYTHON_ONLY = {
    "plan": {
        "hydrant.calib.Taylor": ["--diversity", "--noise"],
        "hydrant.calib.Dropout": ["--rate"],
        "hydrant.calib.Circuit": ["--objective", "--masking", "--average"],
        "hydrant.workflow.Grid": ["--forks", "--heads"],
        "hydrant.tuning.Jointly": ["--epochs"],
    },
    "tune": {
        "hydrant.tuning.Jointly": ["--weight-decay", "--warmup", "--patience", "--device"],
        "hydrant.tuning.BatchEnsemble": ["--deviation", "--factors-only"],
    },
    "make": {"hydrant.workflow.Recipe": ["--learning-rate", "--mixed-precision"]},
    "build": {
        "hydrant.build.TensorRT": ["--optimization-level", "--workspace", "--refit", "--version-compatible",
                                   "--timing-cache"],
        "hydrant.build_engine": ["--log"],
    },
    "fuse": {"hydrant.fuse": ["--low-rank"]},
    "export": {"hydrant.export.GraphForm": ["--attention"]},
    "profile": {"hydrant.evaluation.Timing": ["--iterations"]},
    "calibrate": {"hydrant.calib.Conformal": ["--conformal-method"]},
    "evaluate": {"hydrant.EvaluationOptions": ["--corrupted", "--neighbours", "--caution"]},
    "predict": {"hydrant.runtime.offline.ray_engine.Actors": ["--actor-cpus"]},
    "serve": {
        "--settings": ["--origin", "--requests", "--alpha", "--psi", "--window", "--record-rate", "--record-bytes",
                       "--record-redact", "--replica-cpus", "--replica-gpus"],
    },
    "triton": {
        "hydrant.serving.triton.TritonSettings": ["--queue-delay", "--instances", "--threads", "--environment",
                                                  "--linked"],
    },
}  # fmt: skip
"""Removed options by command, and the Python type or settings file that has them now."""

OTHER_NAMES = {"--log": "log_file", "--conformal-method": "method", "--origin": "origins"}
"""Parameters whose names differ from the former options."""


def current(arguments: Sequence[str]) -> list[str]:
    """Replace renamed options; raise an error for removed ones."""
    command, words = next(iter(arguments), ""), iter(arguments)
    result: list[str] = []
    for word in words:
        flag, equals, value = word.partition("=")
        if word == "--":
            return [*result, word, *words]
        for place, former in PYTHON_ONLY.get(command, {}).items():
            if flag in former:
                name = OTHER_NAMES.get(flag, flag[2:].replace("-", "_"))
                how = f"{place}({name}=…) in Python" if "." in place else f'{place} FILE, a JSON object with "{name}"'
                raise InputError(f"hydrant {command} no longer has {flag}; use {how}")
        if command in READ_BY and flag in RENAMED and (command, flag) != ("predict", "--batch-size"):
            value = value if equals else next(words, "")
            print(f"hydrant: warning: {flag} is now --read {RENAMED[flag]}={value}", file=sys.stderr)
            result += ["--read", f"{RENAMED[flag]}={value}"]
        else:
            result.append(word)
    return result
