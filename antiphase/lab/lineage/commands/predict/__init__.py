"""New texts, classified or translated by a trained model: ``antiphase predict``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from antiphase.base.errors import InputError
from antiphase.lab.lineage.names import device_flag
from antiphase.lab.settings.flags import Settings, argument, flag


@dataclass(frozen=True, kw_only=True)
class PredictSettings(Settings):
    """Classify new texts, with the probability of each label, or translate them.

    Example: [bold]antiphase predict runs/trec --text "Who was Galileo ?"[/]
    """

    folder = "optional"

    name: str = argument(
        "RUN", "Output of antiphase classify, a run of antiphase translate, or any text classifier or translator."
    )
    texts: Sequence[str] = flag("Text to read. Repeatable.", name="--text", default=())
    files: Sequence[str] = flag(
        "File with one text per line, or a table with a text column. Repeatable.", name="--file", default=()
    )
    text_field: str | None = flag("Column with the text.", default=None)
    as_json: bool = flag("Print one JSON object per text instead of a table.", name="--json", default=False)
    device: str = device_flag()

    def check(self) -> None:
        super().check()
        if not self.texts and not self.files:
            raise InputError("--text or --file is missing: give texts to read")
        if self.text_field is not None and not self.files:
            raise InputError("--text-field is for --file; remove it, or give --file")


SETTINGS = PredictSettings
