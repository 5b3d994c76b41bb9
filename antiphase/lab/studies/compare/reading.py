"""Records of ``antiphase compare`` and ``train`` → what is shown of them."""

from __future__ import annotations

from antiphase.base.records import Record
from antiphase.lab.measures.retrieval_presentation import Retrieval
from antiphase.lab.studies.compare import ComparedRun, Comparison, Parameters
from antiphase.lab.studies.outcomes import LearnedThreshold
from antiphase.lab.studies.runs import run_of


def comparison_of(record: Record) -> Comparison:
    """The comparison; a single run is one of one arm.

    Raises:
        InputError: a record of another kind, or with invalid contents.
    """
    if record.kind != "train":
        return Comparison.of(record)
    trained = run_of(record)
    arm = record.config.get("model", {}).get("attention_type") or "model"
    run = ComparedRun(arm=arm, **vars(trained))
    return Comparison(arms=[arm], runs=[run], parameters={arm: Parameters(total=trained.parameters or None)})


def retrieval_of(record: Record) -> Retrieval:
    """Its needles and its allocation of attention."""
    found = comparison_of(record)
    grid = found.needles
    return Retrieval(found.arms, grid.summary, grid.cells, found.allocation, grid.crossings)


def threshold_of(found: Comparison) -> LearnedThreshold | None:
    """The accuracy above which a model has learned; None where the record has no guess rate."""
    return None if found.guess_rate is None else LearnedThreshold.of(found.guess_rate, found.threshold)


def sentences(record: Record) -> list[str]:
    """The sentences of a comparison."""
    found = comparison_of(record)
    return [entry.sentence for entry in (*found.comparison, *found.further_comparison) if entry.sentence]
