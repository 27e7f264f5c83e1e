"""Files of inputs → a file of predictions, in Python: all of them, or one of several parts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...data.data_options import Reading
from ...errors import InputError, cut
from ...progress import Progress, no_progress
from ...runtime import Predictor
from .parts import Part
from .run import CHUNK, Division, predict_part
from .scoring import Scoring
from .shards import Shard
from .sources import Sources


def predict_files(
    predictor: Predictor,
    inputs: str | Path | Sequence[str | Path],
    output: str | Path,
    *,
    shard: str = "1/1",
    errors: str | Path | None = None,
    skip_invalid: bool = False,
    probabilities: bool = False,
    reading: Reading = Reading(),
    chunk: int = CHUNK,
    progress: Progress = no_progress,
) -> Part:
    """Predict the rows of files, or one part of them, as `hydrant predict --shard` does.

    The same call again goes on where an interrupted one stopped, and does nothing once the part is there.
    ``merge_parts`` makes one file of all parts.

    Args:
        predictor: of the bundle.
        inputs: files, patterns, folders, data sets and URLs, as of `hydrant predict --input`; every part names the
            same ones.
        output: file that gets the rows: JSON lines, or CSV or Parquet by its ending. Beside it comes its manifest.
        shard: which of several equal parts of the rows, as ``"2/4"``.
        errors: file that gets the rows of inputs that cannot be used, instead of the output; with ``skip_invalid``.
        skip_invalid: give an input that cannot be used an ``error`` in its row, and go on.
        probabilities: also give the probability of every class or label.
        reading: columns of tables, and inputs per run of the model.
        chunk: rows that are kept together while the run goes on, and lost when it is interrupted.
        progress: display.

    Returns:
        what was written: ``path``, ``shard``, ``total`` rows of all parts, and how many of this one ``failed``.

    Raises:
        InputError: an input or an output cannot be used, the output is one of the inputs, or belongs to other work.
        BackendError: as of ``Predictor.predict``.
    """
    if not isinstance(shard, str):
        raise InputError(f"shard is {cut(shard)}; expected a string, such as '2/4' for the second of four")
    if reading.examples is not None:
        raise InputError(f"reading has examples = {cut(reading.examples)}; all rows are predicted: leave it out")
    if errors is not None and not skip_invalid:
        raise InputError(
            "errors names a file for inputs that are skipped; give skip_invalid=True, too, or leave it out"
        )
    names = [inputs] if isinstance(inputs, str | Path) else list(inputs)
    aside = None if errors is None else Path(errors)
    division = Division(output=Path(output), errors=aside, shard=Shard.parse(shard), chunk=chunk)
    sources = Sources.named([str(name) for name in names], reading, missing=skip_invalid)
    scoring = Scoring(batch_size=reading.batch_size, skip_invalid=skip_invalid, probabilities=probabilities)
    return predict_part(predictor, predictor.path, sources, scoring, division, progress=progress).part
