"""Options for reading data: table columns, number of examples, batch size."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..errors import InputError, check_whole, cut

TAGS = ("tags", "ner_tags")  # columns of word tags where no label column exists


@dataclass(frozen=True)
class DataOptions:
    """Columns, sample size and batch size for labelled data.

    Attributes:
        text: column that holds the text.
        label: column that holds the label.
        text_pair: column that holds the second text, for models that read pairs; ``None`` for single texts.
        examples: number of examples, drawn at random; 0 for all. ``None`` uses the default of the command: 2,048 to
            plan, 256 to export and verify, all to tune, calibrate and evaluate.
        batch_size: inputs per run of the model. Memory grows with it, not with the number of examples.
    """

    text: str = "text"
    label: str = "label"
    text_pair: str | None = None
    examples: int | None = field(default=None, kw_only=True)
    batch_size: int = field(default=32, kw_only=True)

    def __post_init__(self) -> None:
        for name in (self.text, self.label, "pair" if self.text_pair is None else self.text_pair):
            if not isinstance(name, str) or not name:
                raise InputError(f"the column name is {cut(name)}; expected a name from the header")
        for option, value, least in (("examples", self.examples or 0, 0), ("batch_size", self.batch_size, 1)):
            check_whole(option, value, least)

    def limit(self, usual: int | None = None) -> int | None:
        """Maximum number of examples, ``usual`` if none is set; ``None`` for all."""
        return usual if self.examples is None else self.examples or None
