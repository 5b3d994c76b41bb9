"""The Differential Transformer paper's claims (2410.05258), each with its numbers and how it is measured here.

A claim compares the differential arm with the softmax arm over paired seeds; ``judging.py`` gives the verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from antiphase.lab.measures.retrieval_results import NOISE
from antiphase.lab.studies.compare.comparison import PAPER_LOSS
from antiphase.lab.studies.metrics import NATS, Metric
from antiphase.lab.studies.reproduce import abilities, readings
from antiphase.lab.studies.reproduce.abilities import Ability
from antiphase.lab.studies.reproduce.readings import Floor, Found, Series


@dataclass(frozen=True)
class PaperClaim:
    """One claim of the paper."""

    name: str
    part: str
    """The part of the reproduction whose records show it."""
    source: str
    """Section, table or figure."""
    paper: str
    """The paper's own numbers, softmax first, in the unit of ``metric``."""
    measured: str
    """How it is measured here, where that differs from the paper; ``{cells}`` is filled in from ``cells``."""
    metric: Metric
    read: Callable[[Found], Series]
    floor: Callable[[Found], Floor | None] = lambda found: None
    """The guess rate of an accuracy; where there is one, models may have learned or not, and are then counted."""
    guard: Callable[[Found], str | None] = lambda found: None
    """Why records that exist cannot show the claim."""
    abilities: Callable[[Found], list[Ability]] = lambda found: []
    """What both models of a pair must have to a similar degree, because otherwise a model without it would win the
    claim."""
    cells: Callable[[Found], str] = lambda found: ""
    """Which of the measured cells count, in words."""
    effect: float | None = None
    """The paper's, differential minus softmax, the smallest of its numbers; None: it has none in this unit."""


PRIMARY = "Language modelling: lower held-out loss at equal size and tokens"
"""The claim that a reproduction is made for before all others."""
CLAIMS = (
    PaperClaim(
        "Downstream tasks: higher accuracy", "harness", "Tables 1 and 8",
        "mean of seven tasks, zero-shot 55.4 → 56.2, five-shot 56.4 → 58.0 (350B tokens)",
        "mean of the tasks given and their numbers of examples",
        Metric("accuracy", "points", lower_is_better=False, digits=1, is_share=True), readings.downstream,
        readings.without_reading, effect=0.008,
    ),
    PaperClaim(
        PRIMARY, "compare", "Figure 3, Table 6",
        "3.087 → 3.062 at 1.4B; 6.8B as good as 11B, 160B tokens as 251B", "held-out text",
        Metric("held-out loss", NATS, lower_is_better=True, digits=4), readings.compared("held-out loss"),
        effect=PAPER_LOSS,
    ),
    PaperClaim(
        "Long context: more gained from context", "long-context", "Figure 4", "loss lower at every length to 64K",
        "loss of the last eighth of the length of training behind as many tokens, minus that behind the whole window; "
        "no model was extended",
        Metric("gain from context", NATS, lower_is_better=False, digits=4),
        readings.gained, guard=abilities.knows_gain, abilities=abilities.no_higher_at_the_end,
    ),
    PaperClaim(
        "Key information retrieval: more of several needles found", "needles", "Table 2",
        "R = 2, N = 2: 85 → 92; N = 4: 62 → 84; N = 6: 55 → 85 (4K tokens)",
        "R = 1, needles anywhere; mean over the N where the models are off floor and ceiling: {cells}",
        Metric("right outputs", "points", lower_is_better=False, digits=1, is_share=True),
        lambda found: readings.right_in(found, readings.telling_cells(found)),
        lambda found: readings.pooled(readings.telling_cells(found).values()), abilities.can_tell,
        cells=readings.counted, effect=0.07,
    ),
    PaperClaim(
        "Attention allocation: more on the answer", "allocation", "Table 3", "3 to 9 → 27 to 40 by depth",
        "share of Σ|A|, the needle anywhere",
        Metric("share on the answer", "points", lower_is_better=False, digits=1, is_share=True),
        readings.allocated("answer"), guard=abilities.was_asked, abilities=abilities.finding, effect=0.24,
    ),
    PaperClaim(
        "Attention allocation: less on noise", "allocation", "Table 3", "49 to 54 → 1 to 2 by depth",
        "share of Σ|A| on other needles and filler",
        Metric("share on noise", "points", lower_is_better=True, digits=1, is_share=True),
        readings.allocated(*NOISE), guard=abilities.was_asked, abilities=abilities.finding, effect=-0.47,
    ),
    PaperClaim(
        "In-context learning: higher many-shot accuracy", "many-shot", "Figure 6", "5.2 to 21.6 points higher",
        "words with meaningless labels, as in training, with the largest number of examples at this scale",
        Metric("accuracy", "points", lower_is_better=False, digits=1, is_share=True),
        readings.most_shots, readings.majority, effect=0.052,
    ),
    PaperClaim(
        "In-context learning: less spread over orders of the examples", "many-shot", "Figure 7",
        "best minus worst of random orders on TREC: 19.0 → 4.0",
        "the same words; answers that flip between two orders, over 2p(1-p), the share for random answers of the same "
        "accuracy p",
        Metric("flips over those by chance", "", lower_is_better=True, digits=3),
        readings.flips, guard=abilities.has_orders, abilities=abilities.naming_labels,
    ),
    PaperClaim(
        "Contextual hallucination: more outputs that are true of the text", "hallucination", "Table 4",
        "XSum 44 → 53, CNN/DM 32 → 41, MultiNews 42 → 61, Qasper 28 → 39, HotpotQA 36 → 46, 2WikiMQA 29 → 36",
        "the given data sets, judged by the given judge",
        Metric("true outputs", "points", lower_is_better=False, digits=1, is_share=True),
        readings.faithful, readings.untrue, abilities.is_judged, effect=0.07,
    ),
    PaperClaim(
        "Outliers: smaller largest attention logit", "outliers", "Table 5", "318.0 → 38.8", "over all layers",
        Metric("largest attention logit", "", lower_is_better=True, digits=2),
        readings.largest("attention logits"),
        abilities=lambda found: abilities.equally_trained(found, found.outliers),
    ),
    PaperClaim(
        "Outliers: smaller largest hidden state", "outliers", "Table 5", "3608.6 → 1688.2", "over all layers",
        Metric("largest hidden state", "", lower_is_better=True, digits=2),
        readings.largest("hidden states"),
        abilities=lambda found: abilities.equally_trained(found, found.outliers),
    ),
    PaperClaim(
        "Quantization: less lost with 4-bit attention logits", "quantization", "Figure 8",
        "differential with 4 bits as good as softmax with 6, in accuracy on HellaSwag", "in loss on held-out text",
        Metric("loss added by 4 bits", NATS, lower_is_better=True, digits=4),
        readings.lost_to_four_bits, guard=abilities.costs_something,
        abilities=lambda found: abilities.equally_trained(found, found.quantization),
    ),
)  # fmt: skip
UNJUDGED = (
    "parts removed (Table 6), throughput (Table 7), the scaling laws of Figure 3, and alternating orders (Figure 7)"
)
"""What the reproduction measures without a verdict."""
