"""Judges outputs of a model and of its controls about texts, and stores them line by line if there is an output folder.

``verdicts.jsonl`` contains every output with its verdict.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from antiphase.base.errors import InputError, named, renamed
from antiphase.base.folders.contents import hash_of
from antiphase.base.folders.journal import append_line, read_lines
from antiphase.base.folders.work import Resumable
from antiphase.base.records import Record, write_atomically
from antiphase.lab.measures.hallucination import (
    GOLD,
    LEAD,
    MODEL,
    WRONG,
    DataVerdicts,
    Hallucination,
    HallucinationSettings,
    JudgeControl,
    JudgeName,
)
from antiphase.lab.measures.hallucination.items import (
    Item,
    Prompted,
    draw,
    lead,
    load_items,
    score,
    write,
    wrong_references,
)
from antiphase.lab.measures.hallucination.judges import (
    Answer,
    EndpointJudge,
    Judge,
    LocalJudge,
    judge_control,
    yes_or_no,
)
from antiphase.lab.measures.parts import silent
from antiphase.lab.scoring.lengths import context_length
from antiphase.lab.scoring.loading import (
    LoadedModel,
    digest,
    load_model,
    openings_of,
    origins,
    refused_by_model,
    wrap_model,
)
from antiphase.lab.text.tokenization import check_chat_template
from antiphase.lab.training.device import loading_options

OUTPUTS, VERDICTS, ANSWERS = "outputs.jsonl", "verdicts.jsonl", "answers.jsonl"
AT_ONCE = 16
"""Number of prompts processed before their outputs are stored."""
CHARACTERS_A_TOKEN = 4
"""Estimate for a judge whose tokenizer is not available."""
NONSENSE = "neither yes nor no"

Report = Callable[[float, int], None]
"""Called with the number of finished texts and the total."""


def evaluate(
    settings: HallucinationSettings,
    output: Path,
    *,
    resume: bool = False,
    say: Callable[[str], None] = lambda message: None,
    report: Report = silent,
    judge: Judge | None = None,
) -> Record:
    """Measure how often a model and its controls write unsupported text; write ``record.json`` in ``output``.

    The model's outputs and the judge's answers are stored line by line, so that nothing is generated or paid for twice;
    with ``resume``, only unanswered questions are asked again.

    Args:
        judge: used instead of the judge in the settings.

    Raises:
        InputError: a model, judge, key or data file cannot be used, the budget is too small, or the folder has other
            contents.
    """
    settings.check()
    started = time.perf_counter()
    with Resumable(OUTPUTS).held(output, resume=resume):
        data = {Path(path).stem: load_items(path) for path in settings.data}
        judge = judge or _judge(settings)
        loaded = load_model(settings.name, **loading_options(settings))
        if settings.chat_template:
            check_chat_template(loaded.tokenizer, named("model", loaded.name))
        drawn = _drawn(
            loaded, data, settings.samples, settings.max_new_tokens, settings.seed, chat=settings.chat_template
        )
        controls = {name: controls_of(prompted.items, settings.seed) for name, prompted in drawn.items()}
        answers = _Answers(_kept_answers(Path(settings.judge_answers or output / ANSWERS)), judge)
        _estimate(settings, drawn, controls, answers, say)
        kept = TextStore(output / OUTPUTS, "text")
        with refused_by_model(settings.name):
            written = _written(loaded, drawn, kept, settings.max_new_tokens, say, report)
        systems = {name: [System(MODEL, drawn[name].items, written[name]), *controls[name]] for name in drawn}
        with refused_by_model(settings.judge, field="judge"):
            judged = _judged(systems, answers, say, report)
        lines = [json.dumps(vars(line), ensure_ascii=False) + "\n" for line in judged.lines]
        write_atomically(output / VERDICTS, "".join(lines).encode())
        if judged.reasons:
            listed = "; ".join(f"{count} × {reason}" for reason, count in judged.reasons.items())
            again = " (--resume asks again where there was no answer)" if set(judged.reasons) - {NONSENSE} else ""
            say(f"{sum(judged.reasons.values())} outputs have no verdict: {listed}{again}")
        found = _result(settings.name, JudgeName(settings.judge, settings.judge_url), drawn, systems, judged)
        read = origins([loaded, *([judge.loaded] if isinstance(judge, LocalJudge) else [])])
        seconds = time.perf_counter() - started
        return found.save(output, settings, seconds=seconds, **read, **openings_of(loaded))


def hallucination(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    data: Mapping[str, Sequence[Item]],
    judge: Judge,
    *,
    samples: int = 100,
    max_new_tokens: int = 64,
    seed: int = 0,
) -> Hallucination:
    """Judge a model's summaries and answers, and the controls.

    Args:
        data: items by name of the data, for example from ``items.load_items``.
        judge: for example ``judges.LocalJudge``.
        samples: number of items per data set, drawn at random.
        max_new_tokens: largest number of tokens that the model may write.

    Raises:
        InputError: too few items fit in the model's context, or the judge raises an error.
        ValueError: logits are NaN.
    """
    loaded = wrap_model(model, tokenizer)
    drawn = _drawn(loaded, data, samples, max_new_tokens, seed)
    written = _written(loaded, drawn, TextStore(), max_new_tokens)
    systems = {
        name: [System(MODEL, prompted.items, written[name]), *controls_of(prompted.items, seed)]
        for name, prompted in drawn.items()
    }
    judged = _judged(systems, _Answers(TextStore(), judge))
    return _result(loaded.name, JudgeName(judge.name), drawn, systems, judged)


def check_judged(settings: HallucinationSettings) -> None:
    """Check the judge and the data before anything slow happens.

    Raises:
        InputError: as for ``evaluate``, if a judge, file or value cannot be used.
    """
    settings.check()
    for path in settings.data:
        load_items(path)
    _judge(settings)


@dataclass(frozen=True)
class System:
    """The outputs of one system for the items of one data set."""

    role: str
    items: list[Item]
    outputs: list[str]


class TextStore:
    """Texts by a digest of their key, with further values, stored in a file if one is named."""

    def __init__(self, path: Path | None = None, name: str = "text") -> None:
        """
        Args:
            name: key of the text in a line.

        Raises:
            InputError, OSError: the file is unreadable or has other contents.
        """
        lines = [] if path is None else read_lines(path, "key", name)
        self.path, self.name = path, name
        self.known: dict[str, str] = {line["key"]: line[name] for line in lines}
        self.further = {line["key"]: {k: v for k, v in line.items() if k not in ("key", name)} for line in lines}

    def add(self, key: str, text: str, **further: float) -> None:
        self.known[key], self.further[key] = text, further
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            append_line(self.path, {"key": key, self.name: text, **further})


def _kept_answers(path: Path) -> TextStore:
    try:
        return TextStore(path, "answer")
    except (InputError, OSError) as error:
        raise InputError(f"--judge-answers {path} holds no answers of a judge ({error})") from None


class _Answers:
    """A judge's answers by judge and question; failures are not stored."""

    def __init__(self, kept: TextStore, judge: Judge) -> None:
        self.kept, self.judge = kept, judge

    def missing(self, questions: Sequence[str]) -> list[str]:
        """Distinct questions without an answer, in order."""
        return [question for question in dict.fromkeys(questions) if self._key(question) not in self.kept.known]

    def ask(self, questions: Sequence[str], report: Report) -> dict[str, Answer]:
        """An answer to every question, or the reason why there is none."""
        missing = self.missing(questions)
        failed: dict[str, Answer] = {}
        for done, (question, answer) in enumerate(zip(missing, self.judge.answers(missing), strict=True), start=1):
            if answer.text is None:
                failed[question] = answer
            else:
                odds = {} if answer.log_odds is None else {"log_odds": answer.log_odds}
                self.kept.add(self._key(question), answer.text, **odds)
            report(done, len(missing))
        return {question: failed.get(question) or self._known(self._key(question)) for question in questions}

    def _known(self, key: str) -> Answer:
        return Answer(self.kept.known[key], log_odds=self.kept.further[key].get("log_odds"))

    def _key(self, question: str) -> str:
        return hash_of([self.judge.identity, question])


def _judge(settings: HallucinationSettings) -> Judge:
    if settings.judge_url is not None:
        return EndpointJudge(
            settings.judge_url, settings.judge, key=settings.key(), longest=settings.judge_tokens,
            timeout=settings.judge_timeout,
        )  # fmt: skip
    with renamed({"model": "judge"}):
        loaded = load_model(settings.judge, **loading_options(settings))
    return LocalJudge(loaded, fingerprint=digest(loaded))


def _drawn(
    loaded: LoadedModel,
    data: Mapping[str, Sequence[Item]],
    samples: int,
    longest: int,
    seed: int,
    *,
    chat: bool = False,
) -> dict[str, Prompted]:
    reads = context_length(loaded.model)
    room = None if reads is None else reads - longest
    return {
        name: draw(items, loaded.tokenizer, name=name, samples=samples, seed=seed, room=room, chat=chat)
        for name, items in data.items()
    }


def controls_of(items: list[Item], seed: int) -> list[System]:
    """Outputs with known truth: the lead of documents, the references, and references with an error."""
    wrong = [(item, text) for item, text in zip(items, wrong_references(items, seed), strict=True) if text is not None]
    summarized = [item for item in items if item.kind == "summarization"]
    return [
        *([System(LEAD, summarized, lead(summarized))] if summarized else []),
        System(GOLD, items, [item.references[0] for item in items]),
        System(WRONG, [item for item, _ in wrong], [text for _, text in wrong]),
    ]


def _estimate(
    settings: HallucinationSettings,
    drawn: Mapping[str, Prompted],
    controls: Mapping[str, Sequence[System]],
    answers: _Answers,
    say: Callable[[str], None],
) -> None:
    """Report the largest number of questions and their cost; raise an error if it exceeds the budget."""
    known = [
        question
        for systems in controls.values()
        for system in systems
        for question in _questions(system)
        if question is not None
    ]
    longest = "x" * (settings.max_new_tokens * CHARACTERS_A_TOKEN)
    questions = [
        *answers.missing(known),
        *(item.asked(longest) for prompted in drawn.values() for item in prompted.items),
    ]
    # of scripts whose characters take three bytes, each is about a token
    read = int(sum(1.5 * len(text.encode()) - 0.5 * len(text) for text in questions)) // CHARACTERS_A_TOKEN
    write_ = 0 if settings.judge_url is None else len(questions) * settings.judge_tokens
    words = f"the judge is asked up to {len(questions):,} questions: about {read:,} tokens to read, {write_:,} to write"
    if settings.judge_price:
        cost = (read * settings.judge_price[0] + write_ * settings.judge_price[1]) / 1e6
        words += f", ${cost:,.2f}"
        if settings.judge_budget is not None and cost > settings.judge_budget:
            raise InputError(f"--judge-budget {settings.judge_budget:g}: {words}; raise it or lower --samples")
    say(words)


def _written(
    loaded: LoadedModel,
    drawn: Mapping[str, Prompted],
    kept: TextStore,
    longest: int,
    say: Callable[[str], None] = lambda message: None,
    report: Report = silent,
) -> dict[str, list[str]]:
    """The model's outputs for all items, including those stored before an interruption."""
    own = digest(loaded)
    keys = {name: [hash_of([own, ids, longest]) for ids in prompted.prompts] for name, prompted in drawn.items()}
    missing = {
        key: ids
        for name, prompted in drawn.items()
        for key, ids in zip(keys[name], prompted.prompts, strict=True)
        if key not in kept.known
    }
    if missing:
        say(f"{loaded.name} writes about {len(missing)} texts")
    left = sorted(missing, key=lambda key: len(missing[key]))
    for start in range(0, len(left), AT_ONCE):
        some = left[start : start + AT_ONCE]
        texts = write(loaded, [missing[key] for key in some], longest=longest)
        for key, text in zip(some, texts, strict=True):
            kept.add(key, text)
        report(min(start + AT_ONCE, len(left)), len(left))
    return {name: [kept.known[key] for key in keys[name]] for name in drawn}


def _questions(system: System) -> list[str | None]:
    """The judge's question about each output; None for empty outputs."""
    return [item.asked(text) if text.strip() else None for item, text in zip(system.items, system.outputs, strict=True)]


@dataclass(frozen=True)
class JudgedOutput:
    """One line of ``verdicts.jsonl``."""

    data: str
    system: str
    place: str
    output: str
    verdict: bool | None
    answer: str | None
    """Of the judge."""
    reason: str
    """Why there is no answer."""
    log_odds: float | None = None
    """Of yes against no, from a local judge."""


@dataclass(frozen=True)
class _Judged:
    """By data set, verdicts and answers on all outputs of all systems; reasons for missing verdicts; lines of all."""

    verdicts: dict[str, list[list[bool | None]]]
    answers: dict[str, list[list[Answer]]]
    reasons: dict[str, int]
    lines: list[JudgedOutput]


def _judged(
    systems: Mapping[str, Sequence[System]],
    answers: _Answers,
    say: Callable[[str], None] = lambda message: None,
    report: Report = silent,
) -> _Judged:
    asked = {name: [_questions(system) for system in of_data] for name, of_data in systems.items()}
    by_text: dict[str, list[str]] = {}  # a judge may read a text once for successive questions about it
    for name, of_data in systems.items():
        for system, each in zip(of_data, asked[name], strict=True):
            for item, question in zip(system.items, each, strict=True):
                if question is not None:
                    by_text.setdefault(item.context, []).append(question)
    questions = [question for about in by_text.values() for question in about]
    say(f"the judge is asked {len(answers.missing(questions)):,} questions")
    known = answers.ask(questions, report)
    reasons: Counter[str] = Counter()
    verdicts: dict[str, list[list[bool | None]]] = {name: [] for name in systems}
    given: dict[str, list[list[Answer]]] = {name: [] for name in systems}
    lines = []
    for name, of_data in systems.items():
        for system, each in zip(of_data, asked[name], strict=True):
            found = []
            heard = [Answer("") if question is None else known[question] for question in each]
            for item, text, question, answer in zip(system.items, system.outputs, each, heard, strict=True):
                decided = False if question is None else yes_or_no(answer.text)
                if decided is None:
                    reasons[answer.reason or NONSENSE] += 1
                found.append(decided)
                lines.append(
                    JudgedOutput(
                        name, system.role, item.place, text, decided, answer.text, answer.reason, answer.log_odds
                    )
                )
            verdicts[name].append(found)
            given[name].append(heard)
    return _Judged(verdicts, given, dict(reasons.most_common()), lines)


def _control(systems: Sequence[System], answers: Sequence[Sequence[Answer]]) -> JudgeControl | None:
    """The judge on references and the same references made wrong."""
    by_role = {system.role: (system.items, given) for system, given in zip(systems, answers, strict=True)}
    (items, right), (changed, wrong) = by_role[GOLD], by_role[WRONG]
    paired = set(changed)
    return judge_control([answer for item, answer in zip(items, right, strict=True) if item in paired], wrong)


def _result(
    name: str, judge: JudgeName, drawn: Mapping[str, Prompted], systems: Mapping[str, Sequence[System]], judged: _Judged
) -> Hallucination:
    tasks = {
        data: DataVerdicts(
            prompted.items[0].kind,
            prompted.left_out,
            [
                score(system.role, system.items, system.outputs, found)
                for system, found in zip(systems[data], judged.verdicts[data], strict=True)
                if system.items
            ],
            _control(systems[data], judged.answers[data]),
        )
        for data, prompted in drawn.items()
    }
    return Hallucination(name, judge, tasks, judged.reasons)
