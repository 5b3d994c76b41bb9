"""The parts of a reproduction: one set of checkpoints, and all that is measured of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from antiphase.base.errors import renamed
from antiphase.base.folders.contents import digest_of, hash_of, model_digest
from antiphase.base.folders.journal import JOURNAL
from antiphase.base.folders.ownership import make_folder
from antiphase.base.randomness import keyed_generator
from antiphase.base.records import Record, write_atomically
from antiphase.lab.measures.hallucination import HallucinationSettings
from antiphase.lab.measures.hallucination.measure import OUTPUTS, check_judged
from antiphase.lab.measures.harness import HarnessSettings
from antiphase.lab.measures.harness.measure import CELLS, check_tasks
from antiphase.lab.measures.inputs import model_content
from antiphase.lab.measures.running import evaluate, settings_of
from antiphase.lab.settings.presets import Preset
from antiphase.lab.speed.model import benchmark_model
from antiphase.lab.studies.ablations.measure import ablations
from antiphase.lab.studies.ablations.rows import ablation_preset
from antiphase.lab.studies.compare.measure import compare
from antiphase.lab.studies.grid import STUDY
from antiphase.lab.studies.jobs import Report
from antiphase.lab.studies.reproduce import PAIRED, STUDIES, ReproduceSettings
from antiphase.lab.studies.reproduce.readings import ARM, BASELINE, diverged
from antiphase.lab.studies.reproduce.scales import SCALES
from antiphase.lab.studies.scaling.measure import scaling, shortened
from antiphase.lab.text.haystacks import output_tokens
from antiphase.lab.text.label_mapping import task_rows
from antiphase.lab.text.prepare import prepare
from antiphase.lab.training.device import choose_device
from antiphase.lab.training.execution.executor import Executor

LABELLED_ROWS = 400
"""Rows of one pairing, from which examples are drawn."""
REUSED = {"harness": CELLS, "hallucination": OUTPUTS}
"""Journals whose lines name the model that they belong to, so that those of a finished measurement can be reused."""


def journal_of(part: str) -> str:
    """The file from which a measurement continues after a stop."""
    return REUSED.get(part, JOURNAL)


def check_own(settings: ReproduceSettings) -> None:
    """Look for what single parts need, before models are trained for hours.

    Raises:
        InputError: a task, judge or file that cannot be used.
    """
    if settings.tasks and "harness" in settings.chosen:
        check_tasks(_harness(settings, ["MODEL"]))
    if settings.judge and "hallucination" in settings.chosen:
        with renamed({"data": "judge_data"}):
            check_judged(_hallucination(settings, "MODEL"))


def own_inputs(settings: ReproduceSettings, part: str) -> list[Any]:
    """What concerns one part alone, by content."""
    if part == "harness":
        files = sorted(path for path in Path(settings.include_path or "").rglob("*") if path.is_file())
        return [list(settings.tasks), digest_of(files) if settings.include_path else None]
    if part == "hallucination" and settings.judge:
        with renamed({"model": "judge"}):
            return [model_content(settings.judge), digest_of([Path(path) for path in settings.judge_data])]
    return []


def _harness(settings: ReproduceSettings, names: Sequence[str], **more: Any) -> HarnessSettings:
    return HarnessSettings(
        names=names, tasks=list(settings.tasks), include_path=settings.include_path,
        trust_task_code=settings.trust_task_code, **more,
    )  # fmt: skip


def _hallucination(settings: ReproduceSettings, name: str, **more: Any) -> HallucinationSettings:
    assert settings.judge is not None
    return HallucinationSettings(name=name, data=list(settings.judge_data), judge=settings.judge, **more)


class PaperParts:
    """The parts of a reproduction, each in its folder and done once."""

    def __init__(
        self,
        settings: ReproduceSettings,
        preset: Preset,
        output: Path,
        say: Callable[[str], None],
        report: Report,
        executor: Executor,
    ) -> None:
        self.settings, self.preset, self.output, self.say, self.report = settings, preset, output, say, report
        self.executor = executor
        self.scale = SCALES[settings.scale]
        self.device = preset.run.training.device
        self.folders: dict[str, list[Path]] = {}
        self.seeds: list[int] = list(preset.compare.seeds)
        """Whose models can be measured."""
        self.diverged: list[int] = []

    def kept(self, part: str) -> list[Record]:
        """The records of a part that was not asked for now, as an earlier call has left them, if it is whole.

        None where a model has changed since.
        """
        folders = [Path(part)] if part in STUDIES else [Path(part) / name for name in self._measurements(part)]
        if not all((self.output / folder / "record.json").is_file() for folder in folders):
            return []
        records = [Record.load(self.output / folder) for folder in folders]
        for folder, record in zip(folders, records, strict=True):
            measured = record.config.get("measured") or []
            models = self._measured_models(folder.name)
            if part not in STUDIES and measured[: len(models)] != models:
                return []
        self.folders[part] = folders
        return records

    def _measured_models(self, name: str) -> list[str]:
        """Digests that identify the models of a measurement in a folder ``ARM-seedN``, ``seedN`` or another."""
        arm, _, seed = name.rpartition("seed")
        arms = [one for one in (BASELINE, ARM) if arm in ("", f"{one}-")] if seed.isdecimal() else []
        return [model_digest(Path(self._model(one, int(seed)))) for one in arms]

    def _measurements(self, part: str) -> dict[str, tuple[str | None, int | None]]:
        """The folders of a part that trains nothing, with the arm (None: both) and the seed (None: no such model)."""
        if part == "throughput":
            return {"models": (None, None)}
        if part in PAIRED:
            return {f"seed{seed}": (None, seed) for seed in self.seeds}
        return {f"{arm}-seed{seed}": (arm, seed) for seed in self.seeds for arm in (BASELINE, ARM)}

    def run(self, part: str) -> list[Record]:
        """The records of a part, made now or earlier."""
        self.folders[part] = []
        if part not in STUDIES:
            return [
                self.once(part, name, partial(self._measure, part, arm, seed), arm=arm, seed=seed)
                for name, (arm, seed) in self._measurements(part).items()
            ]  # fmt: skip
        record = self._study(part)
        if part == "compare":
            self.diverged = diverged(record)
            for seed in self.diverged:
                self.say(f"seed {seed}: a model's loss is not finite, so neither arm of this seed is measured further")
                self.seeds.remove(seed)
        return [record]

    def _study(self, part: str) -> Record:
        """A study that resumes by itself."""
        folder = self.output / part
        self.folders[part].append(Path(part))
        if (folder / "record.json").is_file():
            return Record.load(folder)
        again = (folder / STUDY.file).is_file()
        shared: dict[str, Any] = {"resume": again, "report": self.report, "say": self.say, "executor": self.executor}
        if part == "compare":
            return compare(self.preset, folder, **shared)
        one = self._one_seed()
        if part == "scaling":
            widths, steps = list(self.scale.widths), self.scale.budgets
            judged = {arm: one.compare.arms[arm] for arm in (BASELINE, ARM)}
            two = replace(one, compare=replace(one.compare, arms=judged, also={}))
            return scaling(two, folder, widths=widths, steps=steps, **shared)
        chosen, left_out = ablation_preset(one, self.scale.ablations)
        return ablations(chosen, folder, left_out=left_out, **shared)

    def _one_seed(self) -> Preset:
        """The short runs of a ladder or an ablation."""
        run, compare = self.preset.run, self.preset.compare
        return replace(
            self.preset,
            run=replace(run, training=shortened(run.training, self.scale.ladder_steps)),
            compare=replace(compare, seeds=compare.seeds[:1]),
        )

    def once(
        self, part: str, name: str, work: Callable[[Path], Record], *, arm: str | None = None, seed: int | None = None
    ) -> Record:
        """A measurement in a folder that appears when it is whole; its record says arm and seed.

        It is made again where a model has changed since. After a stop it continues from its journal, if it has one.

        Args:
            arm, seed: whose model is measured; no arm: both arms' of the seed, no seed: none.
        """
        folder = self.output / part / name
        self.folders[part].append(folder.relative_to(self.output))
        measured = self._measured_models(name)
        if own := own_inputs(self.settings, part):
            measured.append(hash_of(own))
        unfinished = folder.with_name(f".{name}-{hash_of(measured)[:12]}")
        if (folder / "record.json").is_file():
            record = Record.load(folder)
            if record.config.get("measured") == measured:
                return record
            self.say(f"{part}: {name} again, because what it was measured on has changed")
        if not (unfinished / journal_of(part)).is_file():
            shutil.rmtree(unfinished, ignore_errors=True)
            if folder.exists() and part in REUSED:
                folder.rename(unfinished)
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        self.say(f"{part}: {name}")
        record = work(unfinished)
        record.config["measured"] = measured
        if arm is not None:
            record.values.update({"arm": arm, "seed": seed})
        record.save(unfinished)
        unfinished.rename(folder)
        return Record.load(folder)

    def _model(self, arm: str, seed: int) -> str:
        return str(self.output / "compare" / f"{arm}-seed{seed}")

    def _measure(self, part: str, arm: str | None, seed: int | None, folder: Path) -> Record:
        if seed is None:
            record = benchmark_model(quick=True, device=str(choose_device(self.device)), say=self.say)
            make_folder(folder)
            record.save(folder)
            return record
        names = [self._model(one, seed) for one in ([BASELINE, ARM] if arm is None else [arm])]
        settings = self._settings(part, names, seed)
        return evaluate(settings, folder, resume=(folder / journal_of(part)).is_file(), say=self.say)

    def _settings(self, part: str, names: Sequence[str], seed: int) -> Any:
        """The settings of a measurement of models."""
        scale, device, first = self.scale, self.device, names[0]
        if part == "harness":
            return _harness(self.settings, names, limit=scale.samples, device=device)
        if part == "hallucination":
            answers = str(self.output / "judge-answers.jsonl")
            return _hallucination(self.settings, first, judge_answers=answers, samples=scale.samples, device=device)
        if part == "many-shot":
            return settings_of(
                part, name=first, tasks=self._word_tasks(), shots=list(scale.shots), orders=scale.orders,
                samples=scale.words, device=device,
            )  # fmt: skip
        if part in PAIRED:
            return settings_of(
                part, name=first, against=list(names[1:]), lengths=[self.length_asked()], samples=scale.cell_samples,
                needles=list(scale.needles if part == "needles" else scale.needles[-1:]), seed=seed, device=device,
            )  # fmt: skip
        return settings_of(part, name=first, samples=scale.samples, device=device)

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

    def _word_tasks(self) -> list[str]:
        """Words whose colours can only be learned from the examples, in several pairings, the same for every model."""
        tasks = self.output / "tasks"
        tasks.mkdir(exist_ok=True)
        pairings = max(1, max(self.scale.samples, self.scale.order_samples) // self.scale.words)
        paths = [tasks / f"word-colours-{number}.yaml" for number in range(pairings)]
        for number, path in enumerate(paths):
            if path.is_file():
                continue
            generator = keyed_generator("reproduce", "labels", number)
            rows = task_rows(generator, count=LABELLED_ROWS, words=self.scale.words)
            for name, lines in (("examples", rows), ("asked", sorted(set(rows)))):
                content = "".join(f"{label} {word}\n" for label, word in lines)
                write_atomically(tasks / f"{path.stem}-{name}.txt", content.encode())
            settings = {
                "name": path.stem, "template": "word-colours", "data": f"{path.stem}-asked.txt",
                "demonstrations": f"{path.stem}-examples.txt",
            }  # fmt: skip
            write_atomically(path, "".join(f"{key}: {value}\n" for key, value in settings.items()).encode())
        return list(map(str, paths))
