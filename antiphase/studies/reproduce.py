"""Every experiment of the Differential Transformer paper with one command: ``antiphase reproduce``.

One set of checkpoints, trained side by side, serves all evaluations. Every part writes records of its own, so what was
done stays after a kill and a second call goes on; the last record holds the claims of the paper, each with a verdict.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from antiphase.benchmarks.model import benchmark_model
from antiphase.config import Preset
from antiphase.data.corpora import fingerprint
from antiphase.data.haystacks import output_tokens
from antiphase.data.label_mapping import task_rows
from antiphase.data.prepare import prepare, wording
from antiphase.errors import InputError
from antiphase.evaluations.hallucination.measure import OUTPUTS
from antiphase.evaluations.harness.measure import CELLS
from antiphase.evaluations.running import evaluate, settings_of
from antiphase.folders.contents import hash_of, model_digest
from antiphase.folders.held import make_folder, only_one
from antiphase.folders.work import BROUGHT_BACK, Resumable
from antiphase.randomness import keyed_generator
from antiphase.reading.files import read_json
from antiphase.records import Record, finite, write_atomically
from antiphase.studies.ablations.measure import ablations
from antiphase.studies.ablations.rows import ablation_preset
from antiphase.studies.claims import CLAIMS, PRIMARY, UNJUDGED
from antiphase.studies.compare.measure import compare
from antiphase.studies.grid import STUDY
from antiphase.studies.jobs import Report
from antiphase.studies.judging import judge_all
from antiphase.studies.readings import ARM, BASELINE
from antiphase.studies.registration import CLAIMS_FILE, Registration, register, registered
from antiphase.studies.reproduce_request import (
    LABELLED_ROWS,
    OWN,
    PAIRED,
    STUDIES,
    TITLES,
    ReproduceRequest,
    scale_preset,
)
from antiphase.studies.scales import SCALES
from antiphase.studies.scaling.measure import scaling, shortened
from antiphase.training.device import choose_device

REQUEST = "reproduce.json"
REPRODUCTION = Resumable(
    REQUEST,
    again="already contains a reproduction; add --resume to continue it",
    other="holds a reproduction with other settings, or of another version ({names}); choose another folder",
)


def reproduce(
    request: ReproduceRequest,
    output: Path,
    *,
    resume: bool = False,
    say: Callable[[str], None] = lambda message: None,
    report: Report = lambda job, step, values: None,
) -> Record:
    """Run the parts that were asked for and judge the paper's claims. Writes ``record.json`` in ``output``.

    Raises:
        InputError: settings or text that cannot be used, a folder with other contents.
        Interrupted: Ctrl-C; ``resume`` goes on.
    """
    preset = scale_preset(request)
    request.check_own()
    begin(request, preset, output, resume=resume)
    started = time.perf_counter()
    with only_one(output):
        registration = registered_claims(output)
        work = Work(request, preset, output, say, report)
        found: dict[str, list[Record]] = {}
        missing = request.missing()
        for part, title in TITLES.items():
            if part == "compare" or (part in request.parts and part not in missing):
                say(f"{part}: {title}")
                found[part] = work.run(part)
            elif kept := work.kept(part):
                found[part] = kept
        record = Record(
            kind="reproduce",
            values=finite(
                {
                    "scale": request.scale,
                    "parts": {part: sorted(str(folder) for folder in work.folders[part]) for part in found},
                    "own_scale": work.scale.is_the_papers,
                    "claims": judge_all(
                        found, missing, registration, diverged=work.diverged, own_scale=work.scale.is_the_papers
                    ),
                    "equal_loss": _equal_loss(found.get("scaling", [])),
                    "models": _trained(found["compare"][0]),
                    "unjudged": UNJUDGED,
                }
            ),
            config=finite(
                {
                    **asdict(request),
                    "sizes": asdict(SCALES[request.scale]),
                    "run": preset.run,
                    "registered": None if registration is None else registration.describe(),
                }
            ),
            seeds=list(preset.compare.seeds),
            seconds=time.perf_counter() - started,
        )
        record.save(output)
    return record


def begin(request: ReproduceRequest, preset: Preset, output: Path, *, resume: bool) -> None:
    """The folder is new, or holds this very reproduction; other parts may be asked for later."""
    path = output / REQUEST
    asked = {name: value for name, value in asdict(request).items() if name not in ("parts", *OWN)}
    tree = finite({**asked, "sizes": asdict(SCALES[request.scale])})
    content = _content(request, preset)
    if REPRODUCTION.begun(output, resume=resume):
        before = read_json(path, "--output", BROUGHT_BACK)
        kept = before.pop("content", {})
        before.pop("claims", None)
        REPRODUCTION.check_same(output, before, tree)
        if changed := [what for what, digest in content.items() if kept.get(what) != digest]:
            raise InputError(
                f"--output {output} began with other content: {changed[0]} has changed since; restore it, or choose "
                "another folder"
            )
    else:
        make_folder(output)
        register(output, primary=PRIMARY, seeds=preset.compare.seeds, claims=[claim.registration() for claim in CLAIMS])
        written = registered(output)
        assert written is not None
        whole = {**tree, "content": content, "claims": written.sha256}
        write_atomically(path, (json.dumps(whole, indent=1) + "\n").encode())


def registered_claims(output: Path) -> Registration | None:
    """What was claimed when the reproduction began; None: it began before claims were written down.

    Raises:
        InputError: the file is not what it was then.
    """
    known = read_json(output / REQUEST, "--output", BROUGHT_BACK).get("claims")
    found = registered(output) if known else None
    if known and (found is None or found.sha256 != known):
        raise InputError(f"--output {output}: {CLAIMS_FILE} is not what it was when the reproduction began; restore it")
    return found


def _content(request: ReproduceRequest, preset: Preset) -> dict[str, str]:
    """Digests of what the models read and are asked."""
    field = preset.run.data.text_field
    texts = {"--data": request.data, "--validation": request.validation}
    found = {flag: fingerprint(paths, field, flag=flag) for flag, paths in texts.items() if paths}
    return {f"what {flag} names": digest for flag, digest in found.items()} | {"the wording of the tasks": wording()}


class _OfModel(Protocol):
    """A measurement of one trained model."""

    def __call__(self, folder: Path, arm: str, seed: int) -> Record: ...


class Work:
    """The parts of a reproduction, each in its folder and done once."""

    def __init__(
        self, request: ReproduceRequest, preset: Preset, output: Path, say: Callable[[str], None], report: Report
    ) -> None:
        self.request, self.preset, self.output, self.say, self.report = request, preset, output, say, report
        self.scale = SCALES[request.scale]
        self.device = preset.run.training.device
        self.folders: dict[str, list[Path]] = {}
        self.seeds: list[int] = list(preset.compare.seeds)
        """Whose models can be measured."""
        self.diverged: list[int] = []

    def kept(self, part: str) -> list[Record]:
        """The records of a part that was not asked for now, as an earlier call has left them, if it is whole.

        None where a model has changed since.
        """
        folders = self._folders(part)
        if not all((self.output / folder / "record.json").is_file() for folder in folders):
            return []
        records = [Record.load(self.output / folder) for folder in folders]
        for folder, record in zip(folders, records, strict=True):
            measured = record.config.get("measured") or []
            models = self._measured_models(Path(folder).name)
            if part not in STUDIES and measured[: len(models)] != models:
                return []
        self.folders[part] = [Path(folder) for folder in folders]
        return records

    def _measured_models(self, name: str) -> list[str]:
        """Of the folder of a measurement, ``ARM-seedN``, ``seedN`` or another: by what its models are known again."""
        arm, _, seed = name.rpartition("seed")
        arms = [one for one in (BASELINE, ARM) if arm in ("", f"{one}-")] if seed.isdecimal() else []
        return [self._weights(one, int(seed)) for one in arms]

    def _folders(self, part: str) -> list[str]:
        """Of the records of a whole part."""
        if part in STUDIES:
            return [part]
        if part == "throughput":
            return [f"{part}/models"]
        if part in PAIRED:
            return [f"{part}/seed{seed}" for seed in self.seeds]
        return [f"{part}/{arm}-seed{seed}" for seed in self.seeds for arm in (BASELINE, ARM)]

    def run(self, part: str) -> list[Record]:
        """The records of a part, made now or earlier."""
        self.folders[part] = []
        if part == "compare":
            record = self._study(part, lambda folder: compare(
                self.preset, folder, resume=(folder / STUDY.file).is_file(), report=self.report, say=self.say
            ))  # fmt: skip
            self.diverged = diverged(record)
            for seed in self.diverged:
                self.say(f"seed {seed}: a model's loss is not finite, so neither arm of this seed is measured further")
                self.seeds.remove(seed)
            return [record]
        one = self._one_seed()
        if part == "scaling":
            widths = list(self.scale.widths)
            return [self._study(part, lambda folder: scaling(
                one, folder, widths=widths, steps=self.scale.budgets, resume=(folder / STUDY.file).is_file(),
                report=self.report, say=self.say,
            ))]  # fmt: skip
        if part == "ablations":
            chosen, left_out = ablation_preset(one, self.scale.ablations)
            return [self._study(part, lambda folder: ablations(
                chosen, folder, left_out=left_out, resume=(folder / STUDY.file).is_file(), report=self.report,
                say=self.say,
            ))]  # fmt: skip
        if part == "throughput":
            return [self.once(part, "models", self._throughput)]
        if part in PAIRED and part != "harness":
            return [self.once(part, f"seed{seed}", self._retrieval(part, seed), seed=seed) for seed in self.seeds]
        if part == "harness":
            return [
                self.once(part, f"seed{seed}", self._harness(seed), seed=seed, journal=CELLS) for seed in self.seeds
            ]
        own: dict[str, _OfModel] = {"many-shot": self._many_shot, "hallucination": self._hallucination}
        measure: _OfModel = own.get(part) or self._measurement(part)
        return [
            self.once(
                part,
                f"{arm}-seed{seed}",
                partial(measure, arm=arm, seed=seed),
                arm=arm,
                seed=seed,
                journal=OUTPUTS if part == "hallucination" else None,
            )
            for seed in self.seeds
            for arm in (BASELINE, ARM)
        ]

    def _one_seed(self) -> Preset:
        """The short runs of a ladder or an ablation."""
        run, compare = self.preset.run, self.preset.compare
        return replace(
            self.preset,
            run=replace(run, training=shortened(run.training, self.scale.ladder_steps)),
            compare=replace(compare, seeds=compare.seeds[:1]),
        )

    def _study(self, part: str, run: Callable[[Path], Record]) -> Record:
        """A study that goes on by itself."""
        folder = self.output / part
        self.folders[part].append(folder.relative_to(self.output))
        return Record.load(folder) if (folder / "record.json").is_file() else run(folder)

    def once(
        self,
        part: str,
        name: str,
        work: Callable[[Path], Record],
        *,
        arm: str | None = None,
        seed: int | None = None,
        journal: str | None = None,
    ) -> Record:
        """A measurement in a folder that appears when it is whole; its record says arm and seed.

        It is made again where a model has changed since.

        Args:
            arm, seed: whose model is measured; no arm: both arms' of the seed, no seed: none.
            journal: file by which the work goes on with what a stop has left; None: it begins afresh.
        """
        folder = self.output / part / name
        self.folders[part].append(folder.relative_to(self.output))
        measured = self._measured_models(name)
        unfinished = folder.with_name(f".{name}")
        if own := self.request.own(part):
            measured.append(hash_of(own))
            unfinished = folder.with_name(f".{name}-{measured[-1][:12]}")
        if (folder / "record.json").is_file():
            record = Record.load(folder)
            if record.config.get("measured") == measured:
                return record
            self.say(f"{part}: {name} again, because what it was measured on has changed")
        if folder.exists() and journal is not None and (unfinished / journal).is_file():
            shutil.rmtree(folder)
        elif folder.exists():
            shutil.rmtree(unfinished, ignore_errors=True)
            folder.rename(unfinished)
        if journal is None or not (unfinished / journal).is_file():
            shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        self.say(f"{part}: {name}")
        record = work(unfinished)
        record.config["measured"] = measured
        if arm is not None:
            record.values.update({"arm": arm, "seed": seed})
        record.save(unfinished)
        unfinished.rename(folder)
        return Record.load(folder)

    def _weights(self, arm: str, seed: int) -> str:
        """By what a trained model is known again."""
        return model_digest(Path(self._model(arm, seed)))

    def _model(self, arm: str, seed: int) -> str:
        return str(self.output / "compare" / f"{arm}-seed{seed}")

    def _measurement(self, part: str) -> _OfModel:
        def measure(folder: Path, arm: str, seed: int) -> Record:
            name = self._model(arm, seed)
            return evaluate(settings_of(part, name=name, samples=self.scale.samples, device=self.device), folder)

        return measure

    def _retrieval(self, part: str, seed: int) -> Callable[[Path], Record]:
        def measure(folder: Path) -> Record:
            counts = self.scale.needles if part == "needles" else self.scale.needles[-1:]
            settings = settings_of(
                part, name=self._model(BASELINE, seed), against=[self._model(ARM, seed)], needles=list(counts),
                lengths=[self.length_asked()], samples=self.scale.cell_samples, seed=seed, device=self.device,
            )  # fmt: skip
            return evaluate(settings, folder)

        return measure

    def length_asked(self) -> int:
        """The length at which a prompt and the room for its output end where training asks first; at most training's.

        Behind that place training has answers and further questions, and never a needle close by. More needles than in
        training need not fit before it: they get the whole length.
        """
        settings = self.preset.run.data
        if max(self.scale.needles) > settings.needles:
            return settings.sequence_length
        data = prepare(settings, self.output / "compare" / "tokens")
        ends = data.task().sample(50, keyed_generator("reproduce", "first question")).prompt_end
        return min(settings.sequence_length, int(ends.max()) + 1 + output_tokens(data.tokenizer, 1))

    def _harness(self, seed: int) -> Callable[[Path], Record]:
        def measure(folder: Path) -> Record:
            names = [self._model(arm, seed) for arm in (BASELINE, ARM)]
            request = self.request.harness(names, limit=self.scale.samples, device=self.device)
            return evaluate(request, folder, resume=(folder / CELLS).is_file(), say=self.say)

        return measure

    def _hallucination(self, folder: Path, arm: str, seed: int) -> Record:
        answers = str(self.output / "judge-answers.jsonl")
        request = self.request.hallucination(
            self._model(arm, seed), judge_answers=answers, samples=self.scale.samples, device=self.device
        )
        return evaluate(request, folder, resume=(folder / OUTPUTS).is_file(), say=self.say)

    def _throughput(self, folder: Path) -> Record:
        record = benchmark_model(quick=True, device=str(choose_device(self.device)), say=self.say)
        make_folder(folder)
        record.save(folder)
        return record

    def _many_shot(self, folder: Path, arm: str, seed: int) -> Record:
        """Words whose colours can only be learned from the examples, in several pairings, the same for every model."""
        tasks = self.output / "tasks"
        tasks.mkdir(exist_ok=True)
        pairings = max(1, max(self.scale.samples, self.scale.order_samples) // self.scale.words)
        paths = [tasks / f"word-colours-{number}.yaml" for number in range(pairings)]
        for number, path in enumerate(paths):
            if path.is_file():
                continue
            rows = task_rows(
                keyed_generator("reproduce", "labels", number), count=LABELLED_ROWS, words=self.scale.words
            )
            for name, lines in (("examples", rows), ("asked", sorted(set(rows)))):
                content = "".join(f"{label} {word}\n" for label, word in lines)
                write_atomically(tasks / f"{path.stem}-{name}.txt", content.encode())
            settings = {
                "name": path.stem, "template": "word-colours", "data": f"{path.stem}-asked.txt",
                "demonstrations": f"{path.stem}-examples.txt",
            }  # fmt: skip
            write_atomically(path, "".join(f"{key}: {value}\n" for key, value in settings.items()).encode())
        settings = settings_of(
            "many-shot", name=self._model(arm, seed), tasks=list(map(str, paths)), shots=list(self.scale.shots),
            orders=self.scale.orders, samples=self.scale.words, device=self.device,
        )  # fmt: skip
        return evaluate(settings, folder)


def _trained(record: Record) -> dict[str, Any]:
    """What the paper's models have to be told apart from."""
    runs, run = record.values["runs"], record.config["run"]
    return {
        "parameters": {arm: next(row["parameters"] for row in runs if row["arm"] == arm) for arm in (BASELINE, ARM)},
        "sequence_length": run["data"]["sequence_length"],
        "tokens": runs[0]["tokens"],
        "description": run["description"],
    }


def diverged(record: Record) -> list[int]:
    """Seeds of a comparison in which a model diverged, and so has no last loss."""
    found = [entry for entry in record.values["comparison"] if entry["metric"] == "held-out loss"]
    if not found:  # no run has one
        return list(record.seeds)
    arms = found[0]["arms"]
    values = zip(record.seeds, arms[BASELINE]["values"], arms[ARM]["values"], strict=True)
    return [seed for seed, *losses in values if None in losses]


def _equal_loss(records: Sequence[Record]) -> list[dict[str, Any]]:
    """What the differential arm needs, in parameters and tokens, for the softmax arm's loss (Figure 3)."""
    return [
        {"axis": ladder["axis"], **ladder["equal_loss"][ARM]}
        for record in records
        for ladder in record.values["ladders"]
        if ARM in ladder["equal_loss"]
    ]
