"""``antiphase reproduce``: the parts that are asked for, one after the other, and the claims judged at the end.

One set of checkpoints, trained side by side, serves all evaluations. Every part writes records of its own, so what was
done stays after a kill and a second call continues; the last record holds the claims of the paper, each with a verdict.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from antiphase.base.errors import InputError, named, nearest
from antiphase.base.files import read_json
from antiphase.base.folders.ownership import make_folder, only_one
from antiphase.base.folders.work import BROUGHT_BACK, Resumable
from antiphase.base.records import Record, finite, write_atomically
from antiphase.lab.settings.naming import naming
from antiphase.lab.settings.presets import Preset, load_preset
from antiphase.lab.settings.schema import DataSettings
from antiphase.lab.studies.claims import CLAIM_FILE, Claim, Registration, register, registered
from antiphase.lab.studies.compare import Comparison
from antiphase.lab.studies.estimate import EstimateSettings
from antiphase.lab.studies.estimate.measure import estimate as estimate_training
from antiphase.lab.studies.estimate.measure import estimated
from antiphase.lab.studies.jobs import Report
from antiphase.lab.studies.plan import Plan
from antiphase.lab.studies.reproduce import OWN, PAPER, TITLES, Models, NeededForLoss, ReproduceSettings, Reproduction
from antiphase.lab.studies.reproduce.claims import CLAIMS, PRIMARY, UNJUDGED
from antiphase.lab.studies.reproduce.judging import judge_all
from antiphase.lab.studies.reproduce.parts import PaperParts, check_own
from antiphase.lab.studies.reproduce.readings import ARM, ARMS, BASELINE, Found, run_part
from antiphase.lab.studies.reproduce.scales import SCALES, estimate
from antiphase.lab.text.corpora import fingerprint
from antiphase.lab.text.prepare import wording
from antiphase.lab.text.workers import cores
from antiphase.lab.training.execution.choice import executor_of

REQUEST = "reproduce.json"
REPRODUCTION = Resumable(
    REQUEST,
    again=f"already contains a reproduction; add {named('resume')} to continue it",
    other="holds a reproduction with other settings, or of another version ({names}); choose another folder",
    earlier=(CLAIM_FILE,),
)


def scale_preset(settings: ReproduceSettings) -> Preset:
    """The preset of a scale with the text and changes that are given.

    Raises:
        InputError: a setting that cannot be used.
    """
    name = settings.scale
    if name not in SCALES:
        raise InputError(f"--scale must be one of {', '.join(SCALES)} or {PAPER}{nearest(name, SCALES)}")
    settings.check()
    if settings.judge and not SCALES[name].reads_documents:
        raise InputError(
            f"--judge: the models of --scale {name} have too short a context for a text and its summary; remove it"
        )
    texts = {"data": list(settings.data), "validation": list(settings.validation)}
    return load_preset(SCALES[name].preset, settings.overrides, **texts)


def plan(settings: ReproduceSettings, output: Path) -> Plan:
    """``reproduce`` with these settings; what is to be trained, and about how long that takes, is said first.

    Raises:
        InputError: a setting that cannot be used.
    """
    run = partial(reproduce, settings)
    if settings.scale == PAPER:
        return Plan(run)
    told = estimate(settings.scale, settings.chosen, scale_preset(settings), cores())
    is_known = told.minutes is not None
    takes = f"about {told.minutes:.0f} minutes here" if is_known else f"{settings.scale} is for a large GPU"
    further = [] if is_known else [on_gpus(SCALES[settings.scale].preset, 1)]
    return Plan(run, announced=[*further,
        f"{told.runs} runs and {told.short_runs} short ones: {told.tokens / 1e6:.0f}M tokens to train, {takes}; then "
        "the evaluations"
    ], runs=told.runs + told.short_runs, tokens=told.tokens)  # fmt: skip


def on_gpus(preset: str, gpus: int) -> str:
    """What one run of a preset would take on so many GPUs, in words."""
    fleet = EstimateSettings(preset=preset, gpus=gpus)
    row = estimated(load_preset(preset, data=["text"]), fleet)[0]
    return (
        f"one run of {row.parameters / 1e6:,.0f}M parameters on {gpus} {fleet.gpu}: {row.total / 1e9:.0f} GB on each, "
        f"replicate {row.replicate}, shard {row.shard}, {row.days:.3g} days at {fleet.peak_share:.0%} of peak; see "
        "antiphase estimate"
    )


def reproduce(
    settings: ReproduceSettings,
    output: Path,
    *,
    resume: bool = False,
    say: Callable[[str], None] = lambda message: None,
    report: Report = lambda job, step, values: None,
) -> Record:
    """Run the parts that were asked for and judge the paper's claims. Writes ``record.json`` in ``output``.

    Raises:
        InputError: settings or text that cannot be used, a folder with other contents.
        Interrupted: Ctrl-C; ``resume`` continues.
    """
    if settings.scale == PAPER:
        settings.check()
        fleet = EstimateSettings(
            preset=PAPER,
            gpus=settings.devices,
            gpu_flops=settings.device_flops,
            peak_share=1.0,  # they are sustained
        )
        with naming({"--gpus": "--devices", "--gpu-flops": "--device-flops"}):
            return estimate_training(fleet, output)
    preset = scale_preset(settings)
    check_own(settings)
    executor = executor_of(settings)
    begin(settings, preset, output, resume=resume)
    started = time.perf_counter()
    with only_one(output):
        claim = registered_claim(output)
        work = PaperParts(settings, preset, output, say, report, executor)
        found: dict[str, list[Record]] = {}
        missing = settings.missing()
        for part, title in TITLES.items():
            if part == "compare" or (part in settings.chosen and part not in missing):
                say(f"{part}: {title}")
                found[part] = work.run(part)
            elif kept := work.kept(part):
                found[part] = kept
        result = Reproduction(
            scale=settings.scale,
            parts={part: sorted(str(folder) for folder in work.folders[part]) for part in found},
            claims=judge_all(Found.of(found), missing, diverged=work.diverged),
            equal_loss=_equal_loss(found.get("scaling", [])),
            models=_trained(found["compare"][0]),
            unjudged=UNJUDGED,
        )
        sizes = asdict(SCALES[settings.scale])
        record = Record(
            kind="reproduce",
            values=finite(result),
            config=finite({**settings.kept(), "sizes": sizes, "run": preset.run, "claim": claim}),
            seeds=list(preset.compare.seeds),
            seconds=time.perf_counter() - started,
        )
        record.save(output)
    return record


def begin(settings: ReproduceSettings, preset: Preset, output: Path, *, resume: bool) -> None:
    """The folder is new, or holds this very reproduction; other parts may be asked for later."""
    path = output / REQUEST
    asked = {name: value for name, value in settings.kept().items() if name not in ("parts", *OWN)}
    tree = finite({**asked, "sizes": asdict(SCALES[settings.scale])})
    content = _content(settings, preset)
    if REPRODUCTION.begun(output, resume=resume):
        before = read_json(path, "output", BROUGHT_BACK)
        kept = before.pop("content", {})
        before.pop("claim", None)
        REPRODUCTION.check_same(output, before, tree)
        if changed := [what for what, digest in content.items() if kept.get(what) != digest]:
            raise InputError(
                f"--output {output} began with other content: {changed[0]} has changed since; restore it, or choose "
                "another folder"
            )
    else:
        make_folder(output)
        register(output, claim_of(preset, SCALES[settings.scale].spread))
        written = registered(output)
        assert written is not None
        whole = {**tree, "content": content, "claim": written.sha256}
        write_atomically(path, (json.dumps(whole, indent=1) + "\n").encode())


def claim_of(preset: Preset, spread: float) -> Claim:
    """The claim that a reproduction is made for before all others, and what is measured besides."""
    (primary,) = [one for one in CLAIMS if one.name == PRIMARY]
    found = Claim.of_blocks(
        f"{primary.name}?", f"{primary.metric.name}: {ARM} - {BASELINE}", arms=2, blocks=len(preset.compare.seeds),
        spread=spread,
    )  # fmt: skip
    return replace(found, details={"others": [one.name for one in CLAIMS if one is not primary]})


def registered_claim(output: Path) -> Registration:
    """What was claimed when the reproduction began.

    Raises:
        InputError: the file is not what it was then.
    """
    found = registered(output)
    if found is None or found.sha256 != read_json(output / REQUEST, "output", BROUGHT_BACK).get("claim"):
        raise InputError(f"--output {output}: {CLAIM_FILE} is not what it was when the reproduction began; restore it")
    return found


def _content(settings: ReproduceSettings, preset: Preset) -> dict[str, str]:
    """Digests of what the models read and are asked."""
    column, texts = preset.run.data.text_field, {"data": settings.data, "validation": settings.validation}
    found = {f"what --{name} names": fingerprint(paths, column, field=name) for name, paths in texts.items() if paths}
    return found | {"the wording of the tasks": wording()}


def _trained(record: Record) -> Models:
    """The models of a comparison."""
    runs, length = Comparison.of(record).runs, run_part(record, "data", DataSettings).sequence_length
    parameters = {arm: next(one.parameters for one in runs if one.arm == arm) for arm in ARMS}
    return Models(parameters, length, runs[0].tokens, str(record.config["run"].get("description", "")))


def _equal_loss(records: Sequence[Record]) -> list[NeededForLoss]:
    """What the differential arm needs, in parameters and tokens, for the softmax arm's loss (Figure 3)."""
    return [
        NeededForLoss(axis=ladder["axis"], **ladder["equal_loss"][ARM])
        for record in records
        for ladder in record.values["ladders"]
        if ARM in ladder["equal_loss"]
    ]
