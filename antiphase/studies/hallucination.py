"""Contextual hallucination, from request to record: ``antiphase evaluate hallucination``."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from antiphase.errors import InputError, naming
from antiphase.evals.hallucination import (
    Item,
    Prompted,
    draw,
    lead,
    load_items,
    score,
    write,
    wrong_references,
)
from antiphase.evals.judges import Answer, EndpointJudge, Judge, LocalJudge, verdict
from antiphase.evals.loading import LoadedModel, digest, load_model, refused_by_model
from antiphase.evals.statistics import wilson_interval
from antiphase.folders.contents import hash_of
from antiphase.folders.held import check_empty, only_one
from antiphase.folders.journal import append_line, read_lines
from antiphase.records import Record, finite, write_atomically
from antiphase.training.loop import choose_device

OUTPUTS, VERDICTS, ANSWERS = "outputs.jsonl", "verdicts.jsonl", "answers.jsonl"
AT_ONCE = 16
"""Prompts between two lines of ``OUTPUTS``."""
CHARACTERS_A_TOKEN = 4
"""Of a judge whose tokenizer is not at hand."""
NONSENSE = "neither yes nor no"
MODEL, LEAD, GOLD, WRONG = "model", "lead", "gold", "wrong"
"""What is judged: the model, the first three sentences, the references, and references made wrong."""


@dataclass(frozen=True, kw_only=True)
class HallucinationRequest:
    """What ``antiphase evaluate hallucination`` was asked for."""

    name: str
    """Local folder or Hub name of a causal language model."""
    data: Sequence[str]
    judge: str
    """A model: at ``judge_url`` where that is given, else a local folder or Hub name."""
    judge_url: str | None = None
    judge_key_file: str | None = None
    judge_key_variable: str | None = None
    judge_answers: str | None = None
    """File in which answers are kept; None: one in the output folder."""
    judge_tokens: int = 16
    judge_timeout: float = 60.0
    judge_price: Sequence[float] = ()
    """Dollars for a million tokens, read and written."""
    judge_budget: float | None = None
    """Dollars."""
    samples: int = 100
    max_new_tokens: int = 64
    seed: int = 0
    device: str = "auto"

    def check(self) -> None:
        """Raise an InputError for a value that cannot be used; it names the flag."""
        if not self.data or len({Path(path).stem for path in self.data}) < len(self.data):
            raise InputError(f"--data must name one or more files of different names, got {', '.join(self.data)}")
        least = {
            "--samples": self.samples,
            "--max-new-tokens": self.max_new_tokens,
            "--judge-tokens": self.judge_tokens,
        }
        for flag, number in least.items():
            if number < 1:
                raise InputError(f"{flag} must be at least 1, got {number}")
        if self.judge_timeout <= 0:
            raise InputError(f"--judge-timeout must be above 0, got {self.judge_timeout:g}")
        if self.judge_key_file and self.judge_key_variable:
            raise InputError("--judge-key-file and --judge-key-variable are two keys; give one")
        paid = (self.judge_key_file, self.judge_key_variable, self.judge_price, self.judge_budget)
        if self.judge_url is None and any(paid):
            raise InputError("--judge-key-file, -key-variable, -price and -budget have no use without --judge-url")
        if self.judge_price and (len(self.judge_price) != 2 or min(self.judge_price) < 0):
            raise InputError("--judge-price must be two numbers, dollars for a million tokens read and written")
        if self.judge_budget is not None and not self.judge_price:
            raise InputError("--judge-budget needs --judge-price")

    def key(self) -> str | None:
        """The key of the endpoint.

        Raises:
            InputError: the file or the variable that is named holds none.
        """
        if self.judge_key_file is not None:
            try:
                key = Path(self.judge_key_file).read_text("utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                reason = getattr(error, "strerror", None) or "it is no text"
                raise InputError(f"--judge-key-file {self.judge_key_file} cannot be read ({reason})") from None
            if not key:
                raise InputError(f"--judge-key-file {self.judge_key_file} is empty")
            return key
        if self.judge_key_variable is not None:
            key = os.environ.get(self.judge_key_variable, "").strip()  # noqa: TID251 – a variable that the user names
            if not key:
                raise InputError(f"--judge-key-variable {self.judge_key_variable}: it is not set, or empty")
            return key
        return None


@dataclass(frozen=True)
class System:
    """What one system wrote about the items of one data set."""

    role: str
    items: list[Item]
    outputs: list[str]


def evaluate_hallucination(
    request: HallucinationRequest,
    output: Path,
    *,
    resume: bool = False,
    say: Callable[[str], None] = lambda message: None,
    report: Callable[[int, int], None] = lambda done, count: None,
    judge: Judge | None = None,
) -> Record:
    """How often a model, and a control, write what the context does not say. Writes ``record.json`` in ``output``.

    What the model wrote and what the judge answered is kept, line by line, so that nothing is written or paid twice;
    with ``resume`` only what has no answer is asked again. ``verdicts.jsonl`` holds every output with its verdict.

    Args:
        judge: instead of the one that the request names.

    Raises:
        InputError: a model, judge, key or data that cannot be used, too small a budget, a folder with other contents.
    """
    request.check()
    if not (output / OUTPUTS).is_file():
        check_empty(output)
    elif not resume:
        raise InputError(f"--output {output} holds this work already; add --resume to go on with it, or choose another")
    started = time.perf_counter()
    with only_one(output):
        data = {Path(path).stem: load_items(path) for path in request.data}
        judge = judge or _judge(request)
        loaded = load_model(request.name, device=str(choose_device(request.device)))
        drawn = {name: _draw(request, name, items, loaded) for name, items in data.items()}
        controls = {name: _controls(prompted.items, request.seed) for name, prompted in drawn.items()}
        answers = Path(request.judge_answers) if request.judge_answers else output / ANSWERS
        kept = _Answers(answers, judge)
        _estimate(request, drawn, controls, kept, say)
        written = _written(request, loaded, drawn, output / OUTPUTS, say, report)
        systems = {name: [System(MODEL, drawn[name].items, written[name]), *controls[name]] for name in drawn}
        verdicts, reasons = _judged(systems, kept, request.judge, output, say, report)
        if reasons:
            listed = "; ".join(f"{count} × {reason}" for reason, count in reasons.items())
            again = " (--resume asks again where there was no answer)" if set(reasons) - {NONSENSE} else ""
            say(f"{sum(reasons.values())} outputs have no verdict: {listed}{again}")
        record = Record(
            kind="evaluate-hallucination",
            values=finite(
                {
                    "model": request.name,
                    "judge": {"model": request.judge, "url": request.judge_url},
                    "tasks": {name: _task(drawn[name], systems[name], verdicts[name]) for name in drawn},
                    "without_answer": reasons,
                }
            ),
            config=finite(asdict(request)),
            seeds=[request.seed],
            seconds=time.perf_counter() - started,
        )
        record.save(output)
    return record


def check_judged(request: HallucinationRequest) -> None:
    """Whether the judge and what is judged are there, before anything else takes its time.

    Raises:
        InputError: as ``evaluate_hallucination`` for a judge, file or value that cannot be used.
    """
    request.check()
    for path in request.data:
        load_items(path)
    _judge(request)


def _judge(request: HallucinationRequest) -> Judge:
    if request.judge_url is not None:
        return EndpointJudge(
            request.judge_url, request.judge, key=request.key(), longest=request.judge_tokens,
            timeout=request.judge_timeout,
        )  # fmt: skip
    with naming({"MODEL": "--judge"}):
        loaded = load_model(request.judge, device=str(choose_device(request.device)))
    return LocalJudge(loaded, fingerprint=digest(loaded), longest=request.judge_tokens)


def _draw(request: HallucinationRequest, name: str, items: Sequence[Item], loaded: LoadedModel) -> Prompted:
    reads = getattr(loaded.model.config.get_text_config(), "max_position_embeddings", None)
    room = None if reads is None else reads - request.max_new_tokens
    return draw(items, loaded.tokenizer, name=name, samples=request.samples, seed=request.seed, room=room)


def _controls(items: list[Item], seed: int) -> list[System]:
    wrong = [(item, text) for item, text in zip(items, wrong_references(items, seed), strict=True) if text is not None]
    summarized = [item for item in items if item.kind == "summarization"]
    return [
        *([System(LEAD, summarized, lead(summarized))] if summarized else []),
        System(GOLD, items, [item.references[0] for item in items]),
        System(WRONG, [item for item, _ in wrong], [text for _, text in wrong]),
    ]


class _Answers:
    """A judge's answers in a file, each by judge and question; failures are not kept."""

    def __init__(self, path: Path, judge: Judge) -> None:
        try:
            self.known = {line["key"]: line["answer"] for line in read_lines(path, "key", "answer")}
        except (InputError, OSError) as error:
            raise InputError(f"--judge-answers {path} holds no answers of a judge ({error})") from None
        self.path, self.judge = path, judge

    def missing(self, questions: Sequence[str]) -> list[str]:
        """Different questions without an answer, in order."""
        return [question for question in dict.fromkeys(questions) if self._key(question) not in self.known]

    def ask(self, questions: Sequence[str], report: Callable[[int, int], None]) -> dict[str, Answer]:
        """An answer, or why there is none, to every question."""
        missing = self.missing(questions)
        failed: dict[str, Answer] = {}
        for done, (question, answer) in enumerate(zip(missing, self.judge.answers(missing), strict=True), start=1):
            if answer.text is None:
                failed[question] = answer
            else:
                self.known[self._key(question)] = answer.text
                self.path.parent.mkdir(parents=True, exist_ok=True)
                append_line(self.path, {"key": self._key(question), "answer": answer.text})
            report(done, len(missing))
        return {question: failed.get(question) or Answer(self.known[self._key(question)]) for question in questions}

    def _key(self, question: str) -> str:
        return hash_of([self.judge.identity, question])


def _estimate(
    request: HallucinationRequest,
    drawn: Mapping[str, Prompted],
    controls: Mapping[str, Sequence[System]],
    kept: _Answers,
    say: Callable[[str], None],
) -> None:
    """Say what the judge will be asked at most, and what it costs; stop where that is more than the budget."""
    known = [
        question
        for systems in controls.values()
        for system in systems
        for question in _questions(system)
        if question is not None
    ]
    longest = "x" * (request.max_new_tokens * CHARACTERS_A_TOKEN)
    questions = [*kept.missing(known), *(item.asked(longest) for prompted in drawn.values() for item in prompted.items)]
    read = sum(map(len, questions)) // CHARACTERS_A_TOKEN
    write_ = len(questions) * request.judge_tokens
    words = f"the judge is asked up to {len(questions):,} questions: about {read:,} tokens to read, {write_:,} to write"
    if request.judge_price:
        cost = (read * request.judge_price[0] + write_ * request.judge_price[1]) / 1e6
        words += f", ${cost:,.2f}"
        if request.judge_budget is not None and cost > request.judge_budget:
            raise InputError(f"--judge-budget {request.judge_budget:g}: {words}; raise it or lower --samples")
    say(words)


def _written(
    request: HallucinationRequest,
    loaded: LoadedModel,
    drawn: Mapping[str, Prompted],
    path: Path,
    say: Callable[[str], None],
    report: Callable[[int, int], None],
) -> dict[str, list[str]]:
    """What the model writes about each item; what a kill leaves behind is taken up."""
    known = {line["key"]: line["text"] for line in read_lines(path, "key", "text")}
    own = digest(loaded)
    keys = {
        name: [hash_of([own, ids, request.max_new_tokens]) for ids in prompted.prompts]
        for name, prompted in drawn.items()
    }
    missing = {
        key: ids
        for name, prompted in drawn.items()
        for key, ids in zip(keys[name], prompted.prompts, strict=True)
        if key not in known
    }
    if missing:
        say(f"{request.name} writes about {len(missing)} texts")
    left = sorted(missing, key=lambda key: len(missing[key]))
    for start in range(0, len(left), AT_ONCE):
        some = left[start : start + AT_ONCE]
        with refused_by_model(request.name):
            texts = write(loaded, [missing[key] for key in some], longest=request.max_new_tokens)
        for key, text in zip(some, texts, strict=True):
            append_line(path, {"key": key, "text": text})
            known[key] = text
        report(min(start + AT_ONCE, len(left)), len(left))
    return {name: [known[key] for key in keys[name]] for name in drawn}


def _questions(system: System) -> list[str | None]:
    """What the judge is asked about each output; nothing about an empty one."""
    return [item.asked(text) if text.strip() else None for item, text in zip(system.items, system.outputs, strict=True)]


def _judged(
    systems: Mapping[str, Sequence[System]],
    kept: _Answers,
    judge: str,
    output: Path,
    say: Callable[[str], None],
    report: Callable[[int, int], None],
) -> tuple[dict[str, list[list[bool | None]]], dict[str, int]]:
    """A verdict on every output of every system, and why some have none."""
    asked = {name: [_questions(system) for system in of_data] for name, of_data in systems.items()}
    questions = [
        question for of_data in asked.values() for each in of_data for question in each if question is not None
    ]
    say(f"the judge is asked {len(kept.missing(questions)):,} questions")
    with refused_by_model(judge, flag="--judge"):
        answers = kept.ask(questions, report)
    reasons: Counter[str] = Counter()
    verdicts: dict[str, list[list[bool | None]]] = {}
    lines = []
    for name, of_data in systems.items():
        verdicts[name] = []
        for system, each in zip(of_data, asked[name], strict=True):
            found = []
            for item, text, question in zip(system.items, system.outputs, each, strict=True):
                answer = Answer("", "") if question is None else answers[question]
                decided = False if question is None else verdict(answer.text)
                if decided is None:
                    reasons[answer.reason or NONSENSE] += 1
                found.append(decided)
                lines.append(
                    {"data": name, "system": system.role, "place": item.place, "output": text, "verdict": decided,
                     "answer": answer.text, "reason": answer.reason}
                )  # fmt: skip
            verdicts[name].append(found)
    write_atomically(output / VERDICTS, "".join(_json_line(line) for line in lines).encode())
    return verdicts, dict(reasons.most_common())


def _json_line(values: dict[str, Any]) -> str:
    return json.dumps(values, ensure_ascii=False) + "\n"


def _task(prompted: Prompted, systems: Sequence[System], verdicts: Sequence[list[bool | None]]) -> dict[str, Any]:
    rows = []
    for system, found in zip(systems, verdicts, strict=True):
        if system.items:
            row = {"system": system.role, **score(system.items, system.outputs, found)}
            rows.append(row if system.role == MODEL else {**row, **_judge_error(row, faithful=system.role != WRONG)})
    return {"kind": prompted.items[0].kind, "left_out": prompted.left_out, "systems": rows}


def _judge_error(row: Mapping[str, Any], *, faithful: bool) -> dict[str, Any]:
    """Share of wrong verdicts among those given, on texts whose truth is known."""
    given = row["right"] + row["wrong"] - row["empty"]
    errors = row["wrong"] - row["empty"] if faithful else row["right"]
    return {
        "judge_error": errors / given if given else None,
        "judge_interval": list(wilson_interval(errors, given)) if given else None,
    }
