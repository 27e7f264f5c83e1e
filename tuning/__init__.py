"""Fine-tuning a fused ensemble: all members jointly, or each alone and then merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..bundle.store import Bundle, resolve
from ..data.data_options import DataOptions
from ..errors import require
from ..progress import Progress, no_progress
from .settings import BatchEnsemble, Jointly, PerMember, TuneReport

__all__ = ["BatchEnsemble", "Jointly", "PerMember", "TuneReport", "tune"]


def tune(
    bundle: Bundle | str | Path,
    data: Any,
    how: Jointly | PerMember | BatchEnsemble = Jointly(),
    *,
    validation: Any = None,
    output: str | Path | None = None,
    force: bool = False,
    reading: DataOptions = DataOptions(),
    seed: int = 0,
    progress: Progress = no_progress,
) -> TuneReport:
    """Fine-tune the members of a bundle on labelled data.

    All members are tuned jointly in the fused model: the loss is the mean of their cross-entropies, so that what
    they share (the MLP among it) stays one and nothing drifts apart. Stored weights that are equal in all members
    before stay so (query, key and value are stored as one): a shared trunk goes on running once. Layers below a fork
    are left as they are unless ``how`` says ``unfreeze``, or by ``freeze`` how many: they run over the data once, and
    an epoch costs the layers above. Dropout has the rates of the checkpoint's configuration; AdamW with linear warm-up
    and decay; gradients of a norm above 1 are scaled down.

    After each epoch the NLL of the averaged probabilities is measured on the validation data, at the temperature that
    makes it least: what one number can mend counts neither for nor against an epoch. The weights of the best epoch
    are kept; where none is better than before tuning, the bundle stays as it is.

    Args:
        bundle: bundle folder. In Python also an open ``Bundle``.
        data: labelled training data: .csv, .jsonl, .parquet, .npz, an image folder, hf:NAME or a URL. Also .tsv; a
            Hugging Face data set is ``hf:NAME:CONFIG:SPLIT``. In Python also what ``data.examples.read_examples``
            takes.
        how: ``Jointly(epochs=5, …)``, or ``PerMember(…)``: each pruned member alone; own attention heads stay, what
            they shared is averaged, and the drift is reported. The merged ensemble is kept if it is better than the
            bundle. ``BatchEnsemble(fork_from=4, …)``: factors of rank one tell the members apart, which share all else.
        validation: labelled validation data (default: one in ten training examples).
        output: folder of the tuned bundle (default: the bundle is replaced).
        force: replace an existing bundle at the output folder.
        reading: columns, number (all) and batch size of the examples: as many make one update. The number is of the
            data to tune on; validation data all count.
        seed: of the held-out share, the order of the examples, dropout and factors. On a CPU the same seed gives the
            same weights.
        progress: display.

    Returns:
        What was done. The tuned bundle is uncalibrated; its FP32 and BF16 graphs are exported again, its other
        graphs and its engines are not.

    Raises:
        InputError: unusable data, options or state, or a loss that is not finite; the bundle is as it was.
        BundleError: the bundle is missing, altered or malformed.
        MissingExtraError: accelerate is not installed.
    """
    require("accelerate", "tune", "tune a bundle")
    from .stages import tuned  # PyTorch, and what it takes to write a bundle

    return tuned(resolve(bundle), data, validation, how, output, force, reading, seed, progress)
