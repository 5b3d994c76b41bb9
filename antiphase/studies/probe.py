"""What attention does in a model on a text, from request to record: what ``antiphase probe`` does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from antiphase.data.packing import pack
from antiphase.errors import InputError, naming
from antiphase.evals.loading import load_model, refused_by_model
from antiphase.evals.sinks import sinks_on_text
from antiphase.folders.held import new_folder
from antiphase.records import Record, finite
from antiphase.training.loop import choose_device


@dataclass(frozen=True, kw_only=True)
class ProbeRequest:
    """What ``antiphase probe`` was asked for."""

    name: str
    """Local folder or Hub name of a model."""
    paths: Sequence[str]
    text_field: str | None = None
    length: int = 512
    samples: int = 32
    alpha: float = 5.0
    device: str = "auto"

    def check(self) -> None:
        """Raise an InputError for a size out of range; it names the flag."""
        if self.length < 2:
            raise InputError(f"--length must be at least 2, got {self.length}")
        if self.samples < 1:
            raise InputError(f"--samples must be at least 1, got {self.samples}")
        if not self.alpha > 0:
            raise InputError(f"--alpha must be above 0, got {self.alpha}")


def probe(
    request: ProbeRequest,
    output: Path,
    *,
    say: Callable[[str], None] = lambda message: None,
    report: Callable[[int, int], None] = lambda done, count: None,
) -> Record:
    """Statistics of every layer and map on text, and which tokens are sinks. Writes ``record.json`` in ``output``.

    Raises:
        InputError: a model or text that cannot be used, attention that cannot be measured, a folder that is not empty.
    """
    request.check()
    started = time.perf_counter()
    tokens = output.parent / f"{output.name}-tokens"
    with new_folder(output, tokens), naming({"data.sequence_length": "--length"}):
        loaded = load_model(request.name, device=str(choose_device(request.device)), with_head=False)
        longest = getattr(loaded.model.config, "max_position_embeddings", None)
        if longest is not None and request.length > longest:
            raise InputError(
                f"--length {request.length} is longer than the {longest} positions of {request.name}; shorten it"
            )
        say("packing the text into tokens")
        packed = pack(
            list(request.paths), loaded.tokenizer, sequence_length=request.length, text_field=request.text_field,
            cache=tokens,
        )  # fmt: skip
        count = min(request.samples, len(packed))
        ids = torch.stack([packed.block(index * len(packed) // count) for index in range(count)])
        tokenizer = loaded.tokenizer
        with refused_by_model(request.name):
            values = sinks_on_text(
                loaded.model, ids, lambda token: tokenizer.decode([token]), alpha=request.alpha, report=report
            )
        record = Record(
            kind="probe",
            values=finite({"model": request.name, **values}),
            config=finite(vars(request)),
            seconds=time.perf_counter() - started,
        )
        record.save(output)
    return record
