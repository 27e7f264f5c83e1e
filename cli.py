"""The command line: one thin subcommand per stage.

Exit status: 0 on success, 1 when a check failed (a verification gate), 2 for unusable input or
usage (one line ``hydrant: error: …``), 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import glob
import io
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from .arguments import parse
from .errors import GateError, HydrantError, InputError, cut

log = logging.getLogger("hydrant")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return the exit status."""
    options = parse(arguments, COMMANDS)
    logging.basicConfig(
        level=logging.INFO if options.verbose else logging.WARNING, format="hydrant: %(levelname)s: %(message)s"
    )
    _quiet_libraries()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without "│" or "Δ" shows "?" instead of failing
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _interrupt)
    try:
        return int(options.run(options))
    except GateError as error:
        _fail(str(error), options.verbose)
        return 1
    except HydrantError as error:
        return _fail(str(error), options.verbose)
    except KeyboardInterrupt:
        print("hydrant: interrupted; nothing was left half-written", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader left; so do we
        return 0
    except Exception as error:  # whatever a library raises, the user gets one line
        text = f"{type(error).__name__}: {cut(error, 200)}"
        return _fail(f"unexpected {text}; run again with -v for details, and report it", options.verbose)


def plan(options: argparse.Namespace) -> int:
    """``hydrant plan``: choose each member's heads."""
    from .calib.planning import plan_heads
    from .files import check_file
    from .render import plan_text

    check_file(options.output)
    state = options.output.with_name(f"{options.output.name}.part") if options.method == "circuit" else None
    model = _source(options.model, options)
    try:
        made = plan_heads(
            model,
            options.data,
            members=options.members,
            keep=None if options.keep is None else _keep(options.keep),
            budget=options.budget,
            fork_from=options.fork_from,
            method=options.method,
            ood=options.ood,
            objective=options.objective,
            masking=options.masking,
            average=options.average,
            diversity=options.diversity,
            noise=options.noise,
            examples=options.examples or None,
            seed=options.seed,
            text_column=options.text_column,
            label_column=options.label_column,
            batch_size=options.batch_size,
            state=state,
            progress=progress,
        )
    except KeyboardInterrupt:
        if state is not None and state.exists():
            print(f"hydrant: {state} holds what was found; run the same command again to go on", file=sys.stderr)
        raise
    made.save(options.output)
    _show(options, {"plan": str(options.output), **made.to_json()}, f"{plan_text(made)}\nwrote {options.output}")
    return 0


def fuse(options: argparse.Namespace) -> int:
    """``hydrant fuse``: prune, group and merge members into a bundle."""
    from .bundle import MANIFEST
    from .drift_report import drift_report, drift_text
    from .families.checkpoint import load_model, load_processor
    from .files import check_replaceable
    from .fusion import fuse as fuse_models
    from .fusion import save_bundle
    from .plan import HeadPlan
    from .render import adapters_text, members_of

    check_replaceable(options.output, MANIFEST, options.force)
    chosen = HeadPlan.load(options.plan) if options.plan else None
    sources = [_source(source, options) for source in options.model]
    models = [
        load_model(source) if isinstance(source, str) else source
        for source in progress(sources, len(sources), "loading checkpoints")
    ]
    adapters = {"adapters": options.adapter, "low_rank": options.low_rank}
    ensemble = fuse_models(models, chosen, keep_separate=options.keep_separate, **adapters)
    processor = None if options.no_processor else load_processor(options.model[0], ensemble.architecture.modality)
    provenance: dict[str, Any] = {"sources": [Path(str(source)).name for source in options.model]}
    drift = drift_report(options, models, ensemble, processor, progress) if len(models) > 1 else None
    if drift is not None:
        provenance["drift"] = drift
    bundle = save_bundle(ensemble, options.output, processor, force=options.force, provenance=provenance)
    parameters = sum(tensor.numel() for tensor in ensemble.state_dict().values())
    lines = [f"wrote {bundle.path}: {members_of(ensemble.members)} of {bundle.family}, {parameters:,} parameters"]
    forms = ensemble.provenance.get("adapted", {})
    lines += adapters_text(ensemble.provenance.get("adapters", []), forms)
    if drift is not None:
        lines.append(drift_text(drift))
    facts = {"bundle": str(bundle.path), "members": ensemble.members, "parameters": parameters, "drift": drift}
    facts |= {"adapted": forms} if forms else {}
    _show(options, facts, "\n".join(lines))
    return 0


def tune(options: argparse.Namespace) -> int:
    """``hydrant tune``: fine-tune the members of a bundle."""
    from .tuning import tune as tune_bundle
    from .tuning.text import tune_text

    place = (options.output or options.bundle).resolve()
    state = place.with_name(f"{place.name}.tune.part")
    try:
        report = tune_bundle(
            options.bundle,
            options.data,
            validation=options.validation,
            output=options.output,
            epochs=options.epochs,
            batch_size=options.batch_size,
            learning_rate=options.learning_rate,
            weight_decay=options.weight_decay,
            warmup=options.warmup,
            patience=options.patience,
            per_member=options.per_member,
            keep_separate=options.keep_separate,
            device=options.device,
            seed=options.seed,
            text_column=options.text_column,
            label_column=options.label_column,
            force=options.force,
            state=state,
            progress=progress,
        )
    except KeyboardInterrupt:
        if any(state.parent.glob(f"{glob.escape(state.name)}*")):
            print(f"hydrant: {state} holds what was tuned; run the same command again to go on", file=sys.stderr)
        raise
    _show(options, report.to_json(), tune_text(report))
    return 0


def export(options: argparse.Namespace) -> int:
    """``hydrant export``: write the ONNX graph into the bundle."""
    from .export import export as export_bundle
    from .render import export_text

    made = export_bundle(
        options.bundle,
        options.precision,
        lowering=options.lowering,
        attention=options.attention,
        member_outputs=options.member_outputs,
        without=options.without,
        data=options.data,
        examples=options.examples,
        seed=options.seed,
        text_column=options.text_column,
        progress=progress,
    )
    for name, reason in made.reasons.items():
        log.info("%s: %s", name, reason)
    _show(options, {"onnx": str(made.path), **made.to_json()}, export_text(made))
    return 0


def build(options: argparse.Namespace) -> int:
    """``hydrant build``: compile a graph into a TensorRT or TensorRT-RTX engine; status 1 if not fused."""
    from .build import build_engine
    from .render import build_text

    made = build_engine(
        options.bundle,
        options.backend,
        options.precision,
        batch=options.batch,
        sequence=options.sequence,
        compute_capability=options.compute_capability,
        hardware_compatibility=options.hardware_compatibility,
        version_compatible=options.version_compatible,
        strip_weights=options.strip_weights,
        refit=options.refit,
        optimization_level=options.optimization_level,
        workspace=options.workspace,
        timing_cache=options.timing_cache,
        require_fused=options.require_fused,
        log_file=options.log,
        name=options.name,
        progress=progress,
    )
    _show(options, made.to_json(), build_text(made))
    return 0


def verify(options: argparse.Namespace) -> int:
    """``hydrant verify``: compare backends with the reference; status 1 when a gate fails."""
    from .render import verify_text
    from .runtime import verify as verify_bundle

    report = verify_bundle(
        options.bundle,
        options.backend,
        precision=options.precision,
        against=options.against,
        data=options.data,
        examples=options.examples,
        seed=options.seed,
        text_column=options.text_column,
        bisect=options.bisect,
        progress=progress,
    )
    _show(options, report.to_json(), verify_text(report))
    return 0 if report.passed else 1


def profile(options: argparse.Namespace) -> int:
    """``hydrant profile``: latency, memory and operators of a bundle, beside its baselines."""
    from .profile_text import profile_text
    from .runtime import profile as profile_bundle

    report = profile_bundle(
        options.bundle,
        options.backend or "auto",
        precision=options.precision,
        batch=options.batch,
        sequence=options.sequence,
        baseline=options.baseline,
        layers=options.layers,
        memory=options.memory,
        threads=options.threads,
        seconds=options.seconds,
        iterations=options.iterations,
        seed=options.seed,
        progress=progress,
    )
    _show(options, report.to_json(), profile_text(report, options.bundle, options.commands))
    return 0


def calibrate(options: argparse.Namespace) -> int:
    """``hydrant calibrate``: fit temperature and thresholds, and put them into the bundle and its graphs."""
    from .calibration_text import calibration_text
    from .runtime import calibrate as calibrate_bundle

    report = calibrate_bundle(
        options.bundle,
        options.data,
        options.ood,
        coverage=options.coverage,
        risk=options.risk,
        score=options.score,
        ood_score=options.ood_score,
        conformal=options.conformal,
        conformal_method=options.conformal_method,
        examples=options.examples or None,
        seed=options.seed,
        text_column=options.text_column,
        label_column=options.label_column,
        batch_size=options.batch_size,
        progress=progress,
    )
    _show(options, report.to_json(), calibration_text(report))
    return 0


def evaluate(options: argparse.Namespace) -> int:
    """``hydrant evaluate``: quality and uncertainty on labelled data, beside competitors, as text, JSON and HTML."""
    from .evaluation import evaluate as evaluate_bundle
    from .evaluation.text import evaluation_text

    report = evaluate_bundle(
        options.bundle,
        options.data,
        options.ood,
        compare=options.compare,
        html=options.html,
        corruptions=options.corruptions,
        corrupted=options.corrupted,
        bootstrap=options.bootstrap,
        latency=options.latency,
        backend=options.backend,
        precision=options.precision,
        examples=options.examples or None,
        seed=options.seed,
        text_column=options.text_column,
        label_column=options.label_column,
        batch_size=options.batch_size,
        progress=progress,
    )
    _show(options, report.to_json(), evaluation_text(report))
    return 0


def predict(options: argparse.Namespace) -> int:
    """``hydrant predict``: label, confidence and uncertainty of texts or images."""
    from .files import check_file
    from .prediction_io import predict_file, predict_items
    from .runtime import load
    from .runtime.backend import NO_GPU

    if options.output:
        check_file(options.output)
    if bool(options.inputs) == bool(options.input):
        raise InputError("give texts or images as arguments, or a file or folder with --input, and not both")
    with load(options.bundle, options.backend, threads=options.threads, precision=options.precision) as predictor:
        for name, reason in predictor.fallbacks:
            level = logging.INFO if reason == NO_GPU else logging.WARNING  # a machine without a GPU lacks nothing
            log.log(level, "backend %s was skipped: %s", name, reason)
        if options.input:
            return predict_file(predictor, options, progress)
        return predict_items(predictor, options)


def inspect(options: argparse.Namespace) -> int:
    """``hydrant inspect``: what is in a bundle; status 1 when a file was altered."""
    from .inspection import inspect_bundle
    from .render import inspect_text

    facts = inspect_bundle(options.bundle)
    _show(options, facts, inspect_text(facts))
    return 0 if all(entry["state"] == "ok" for entry in facts["files"].values()) else 1


def demo(options: argparse.Namespace) -> int:
    """``hydrant demo``: everything end to end on embedded data."""
    from .demo import run_demo
    from .render import demo_text

    report = run_demo(
        options.output,
        seed=options.seed,
        epochs=options.epochs,
        force=options.force,
        say=lambda line: print(line, file=sys.stderr, flush=True),
        progress=progress,
    )
    _show(options, report.to_json(), demo_text(report.to_json()))
    return 0 if report.verified.passed else 1


COMMANDS = {
    "plan": plan,
    "fuse": fuse,
    "tune": tune,
    "export": export,
    "build": build,
    "verify": verify,
    "profile": profile,
    "calibrate": calibrate,
    "evaluate": evaluate,
    "predict": predict,
    "inspect": inspect,
    "demo": demo,
}
"""Every subcommand and the function that runs it."""


def progress(steps: Iterable[Any], total: int, title: str) -> Iterable[Any]:
    """A progress bar on standard error, for work over two seconds on a terminal."""
    from tqdm import tqdm

    return tqdm(steps, total=total or None, desc=title, delay=2, disable=None, leave=False, file=sys.stderr)


def _source(name: str, options: argparse.Namespace) -> Any:
    """A checkpoint by its name, or with ``--classes`` the zero-shot classifier that it becomes."""
    if options.classes is None:
        if options.template:
            raise InputError("--template is given without --classes; name the classes that its {} stands for")
        return name
    from .families.zero_shot import load_zero_shot

    return load_zero_shot(name, options.classes, options.template, progress=progress)


def _keep(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"--keep is {cut(text)}; expected a number of heads, a share such as 0.66, or a JSON list"
        ) from error


def _show(options: argparse.Namespace, facts: Any, text: str) -> None:
    from .prediction_io import print_json

    if options.json:
        print_json(facts)
    else:
        print(text, flush=True)


def _fail(message: str, verbose: bool) -> int:
    if verbose:
        log.exception("traceback")
    print(f"hydrant: error: {' '.join(message.split())}", file=sys.stderr)
    return 2


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _quiet_libraries() -> None:
    """Libraries report through our own messages; their bars and advice stay off the terminal."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


if __name__ == "__main__":
    sys.exit(main())
