"""Fine-tuning a fused ensemble: all members jointly, or each alone and then merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..bundle.store import Bundle, resolve
from ..data.data_options import DataOptions
from ..errors import require
from ..progress import Progress, no_progress
from .settings import BatchEnsemble, Jointly, PerMember, Taught, TuneReport

__all__ = ["BatchEnsemble", "Jointly", "PerMember", "Taught", "TuneReport", "tune"]


def tune(
    bundle: Bundle | str | Path,
    data: Any,
    how: Jointly | PerMember | BatchEnsemble | Taught = Jointly(),
    *,
    validation: Any = None,
    output: str | Path | None = None,
    force: bool = False,
    reading: DataOptions = DataOptions(),
    seed: int = 0,
    progress: Progress = no_progress,
) -> TuneReport:
    """Fine-tune the members of a bundle on labelled data.

    All members are tuned jointly in the fused model: the loss is the mean of their cross-entropies. Shared parts, such
    as the MLP, stay shared. Stored weights that are equal in all members stay equal (query, key and value count as
    one), so a shared trunk still runs once. Layers below the fork stay fixed unless ``how`` sets ``unfreeze`` or
    ``freeze``: they run over the data once, and an epoch costs only the layers above. Dropout rates come from the
    checkpoint's configuration. AdamW uses linear warm-up and decay; gradients are clipped to norm 1.

    A traced model is tuned as a whole: its members share all weights.

    After each epoch the NLL of the averaged probabilities is measured on the validation data, at its best temperature.
    The weights of the best epoch are kept. If no epoch improves on the untuned bundle, the bundle stays as it is.

    Args:
        bundle: bundle folder. In Python also an open ``Bundle``.
        data: labelled training data: .csv, .jsonl, .parquet, .npz, an image folder, hf:NAME or a URL. Also .tsv; a
            Hugging Face data set is ``hf:NAME:CONFIG:SPLIT``. In Python also what ``data.examples.read_examples``
            takes.
        how: ``Jointly(epochs=5, …)``, or ``PerMember(…)``: tune each member alone, average the shared parts, and report
            the merge error; the merged ensemble is kept if it improves on the bundle.
            ``BatchEnsemble(fork_from=4, …)``: members share all weights and differ by rank-one factors.
            ``Taught(teachers=["seed-0/", "seed-1/", "seed-2/"])``: each member learns from one checkpoint.
        validation: labelled validation data (default: one in ten training examples).
        output: folder of the tuned bundle (default: overwrite BUNDLE, without --force).
        force: replace an existing bundle at the output folder.
        reading: columns, number (default: all) and batch size of the training examples. Validation data are all used.
        seed: seed of the held-out share, the order of examples, dropout and factors. Runs on a CPU are reproducible.
        progress: display.

    Returns:
        A report. The tuned bundle is uncalibrated. Its FP32 and BF16 graphs are exported again; other graphs and
        engines are dropped.

    Raises:
        InputError: unusable data, options or state, or a non-finite loss; the bundle is unchanged.
        BundleError: the bundle is missing, altered or malformed.
        MissingExtraError: accelerate is not installed.
    """
    require("accelerate", "tune", "tune a bundle")
    from .stages import tuned  # imports PyTorch

    return tuned(resolve(bundle), data, validation, how, output, force, reading, seed, progress)
