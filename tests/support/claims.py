"""Claims judged from records that tests make."""

from antiphase.base.records import Record
from antiphase.lab.studies.reproduce.claims import CLAIMS
from antiphase.lab.studies.reproduce.judging import judge
from antiphase.lab.studies.reproduce.readings import Found

ARMS = ("softmax", "differential")
SEEDS = range(5)


def judged(name, part, records, *, diverged=(), **further):
    claim = next(claim for claim in CLAIMS if claim.name.startswith(name))
    assert claim.part == part
    return judge(claim, Found.of({part: records, **further}), {}, diverged=diverged)


def of_models(kind, values, *, seeds=SEEDS):
    """Records of single models; ``values(arm, seed)`` are a model's."""
    return [Record(kind=kind, values={"arm": arm, "seed": seed, **values(arm, seed)}) for seed in seeds for arm in ARMS]
