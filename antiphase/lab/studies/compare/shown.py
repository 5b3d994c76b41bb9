"""Records of ``antiphase compare`` and ``train`` → what is shown of them, compared by today's rules."""

from __future__ import annotations

from dataclasses import replace

from antiphase.base.records import Record
from antiphase.base.typed import build
from antiphase.lab.measures.retrieval_shown import Retrieval
from antiphase.lab.settings.presets import CompareSettings
from antiphase.lab.studies.claims import Registration
from antiphase.lab.studies.compare import ComparedRun, Comparison, Parameters
from antiphase.lab.studies.compare.comparison import compared
from antiphase.lab.studies.outcomes import LearnedThreshold
from antiphase.lab.studies.runs import run_of


def shown(record: Record) -> Comparison:
    """The comparison, made anew from its runs; a single run is one of one arm.

    Raises:
        InputError: a record of another kind, or with invalid contents.
    """
    if record.kind != "train":
        found = Comparison.of(record)
        if "compare" not in record.config:  # during training
            return found
        settings = build(CompareSettings, record.config["compare"], strict=False)
        claim = record.config.get("claim")
        registration = None if claim is None else build(Registration, claim, strict=False)
        return replace(found, **vars(compared(settings, found.runs, guess_rate=found.guess_rate, claim=registration)))
    trained = run_of(record)
    arm = record.config.get("model", {}).get("attention_type") or "model"
    run = ComparedRun(arm=arm, **vars(trained))
    return Comparison(arms=[arm], runs=[run], parameters={arm: Parameters(total=trained.parameters or None)})


def retrieval_of(record: Record) -> Retrieval:
    """Its needles and its allocation of attention."""
    found = shown(record)
    grid = found.needles
    return Retrieval(found.arms, grid.summary, grid.cells, found.allocation, grid.crossings)


def threshold_of(found: Comparison) -> LearnedThreshold | None:
    """The accuracy above which a model has learned; None where the record has no guess rate."""
    return None if found.guess_rate is None else LearnedThreshold.of(found.guess_rate, found.threshold)


def sentences(record: Record) -> list[str]:
    """The sentences of a comparison."""
    found = shown(record)
    return [entry.sentence for entry in (*found.comparison, *found.further_comparison) if entry.sentence]
