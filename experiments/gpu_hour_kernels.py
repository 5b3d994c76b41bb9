"""Kernel stages of ``gpu_hour.py``: their tests on the device, block sizes chosen by time, and the two benchmarks."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from antiphase.base.errors import InputError
from antiphase.base.records import Record
from antiphase.lab.speed import attention, block_sizes, model
from antiphase.lab.speed.gpu_schemes import COMPARED_ON_GPU
from antiphase.lab.speed.schemes import Case
from antiphase.ops.triton.launch import INTERPRETED, Tiling
from experiments.gpu_hour_stage import Kept, Stage, lines_of

ROOT = Path(__file__).resolve().parent.parent
TESTS = "tests/ops/triton"
WITHOUT_GPU = "tests/ops/triton/test_compile.py"
"""Tests that only compile, for GPUs that need not exist."""
OLDER_PYTEST = ("-o", "minversion=9.0", "-o", "faulthandler_timeout=600")
"""Options for pytest 9.1, which such a machine may have, and which cannot read the numbers in pyproject.toml."""
REHEARSED = "equals_the_reference and False-None or price or refusals"
"""Tests of the rehearsal, as an expression for pytest's -k: under the interpreter, all of them would take minutes."""
POLL = 1.0
TO_END = 10.0
"""Seconds that tests get to finish before they are killed."""
SMALL_BLOCKS = {
    "forward": (Tiling(32, 32, 4, 1), Tiling(16, 32, 4, 1)), "keys": (Tiling(16, 32, 4, 1),),
    "span": (Tiling(16, 16, 4, 1),),
}  # fmt: skip
"""Candidates in the rehearsal."""


def check_kernels(stage: Stage) -> int:
    """Stage ``kernels``: run every test of the kernels and store each result at once. Returns 1 if one failed."""
    kept = Kept(stage)
    lines = stage.work / "kernels.jsonl"
    stage.work.mkdir(parents=True, exist_ok=True)
    known = {name: result for name, result in kept.pieces.items() if name != "collected"}
    left = [name for name in kept.pieces.get("collected", []) if name not in known]
    if known and not left:
        stage.say("every test has a result")
    elif stage.left > 0:
        lines.unlink(missing_ok=True)
        processes = _pytest(stage, lines, left)
        ended = _watched(stage, kept, processes, lines)
        codes = [process.returncode for process in processes]
        stage.say(f"pytest ended with codes {codes}" if ended else "the minutes are over")
    _gather(kept, lines)
    values = counted(kept.pieces)
    kept.save("gpu-hour-kernels", values, {"tests": TESTS})
    told = f"{values['passed']} passed, {len(values['failed'])} failed, {values['skipped']} skipped"
    stage.say(f"{told}, {len(values['unfinished'])} of {values['collected']} without a result")
    for name, said in values["failed"].items():
        stage.say(f"FAILED {name}: {' | '.join(said)[:300]}")
    return int(bool(values["failed"] or values["unfinished"] or not values["passed"]))


def _pytest(stage: Stage, lines: Path, names: Sequence[str]) -> list[subprocess.Popen[bytes]]:
    """Start the tests in as many processes as there are cores, because most of their time is compilation."""
    parts = 1 if stage.is_rehearsal else os.cpu_count() or 1
    command = [sys.executable, "-X", "faulthandler", "-m", "pytest", "-q", "--import-mode=importlib", *OLDER_PYTEST,
               "-p", "experiments.gpu_hour_results", f"--result-lines={lines.resolve()}",
               "-p", "no:cacheprovider"]  # fmt: skip
    command += list(names) or [TESTS, f"--ignore={WITHOUT_GPU}", *(["-k", REHEARSED] if stage.is_rehearsal else [])]
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    if stage.is_rehearsal:
        own["TRITON_INTERPRET"] = "1"
    started = []
    for part in range(1, parts + 1):
        with open(stage.work / f"kernels-{part}.log", "ab") as log:
            started.append(subprocess.Popen(
                [*command, f"--part={part}/{parts}"], cwd=ROOT, env=os.environ | own, stdout=log, stderr=log,  # noqa: TID251 – a child's environment
            ))  # fmt: skip
    return started


def _watched(stage: Stage, kept: Kept, processes: Sequence[subprocess.Popen[bytes]], lines: Path) -> bool:
    """Store results while they arrive; False if time ran out first."""
    while any(process.poll() is None for process in processes):
        if stage.left <= 0:
            for process in processes:
                process.send_signal(signal.SIGINT)
            for process in processes:
                try:
                    process.wait(TO_END)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            return False
        time.sleep(POLL)
        _gather(kept, lines)
    return True


def _gather(kept: Kept, lines: Path) -> None:
    """Store the results that the tests have written so far."""
    found = lines_of(lines)
    new = False
    for line in found:
        if "collected" in line and "collected" not in kept.pieces:
            kept.pieces["collected"] = line["collected"]
            new = True
        elif "test" in line and kept.pieces.get(line["test"]) != line:
            kept.pieces[line["test"]] = line
            new = True
    if new:
        kept.save("gpu-hour-kernels", {"unfinished": True}, {"tests": TESTS})


def counted(pieces: dict[str, Any]) -> dict[str, Any]:
    """Numbers of tests, failures with pytest's messages, and tests without a result."""
    collected = pieces.get("collected", [])
    results = {name: line for name, line in pieces.items() if name != "collected"}
    return {
        "collected": len(collected),
        "passed": sum(line["outcome"] == "passed" for line in results.values()),
        "skipped": sum(line["outcome"] == "skipped" for line in results.values()),
        "failed": {name: line["said"] for name, line in results.items() if line["outcome"] == "failed"},
        "unfinished": [name for name in collected if name not in results],
        "slowest": dict(sorted(((name, line["seconds"]) for name, line in results.items()),
                               key=lambda pair: -pair[1])[:10]),
    }  # fmt: skip


def time_attention(stage: Stage, *, with_blocks: bool) -> int:
    """Stage ``attention``: time candidates for blocks, and run the operator's benchmark in its short form.

    The benchmark uses the blocks of ``ops/triton/launch.py``, where the best ones are entered by hand.
    """
    _check_interpreter(stage)
    kept = Kept(stage)
    suite, trials = _attention_suite(stage), _trials(stage) if with_blocks else []
    _compiled(stage, kept, trials, suite)
    rounds: dict[str, Any] = {"rounds": 3, "seconds": 0.0} if stage.is_rehearsal else {}
    found = block_sizes.timed_blocks(trials, piece=kept, say=stage.say, **rounds)
    with _few_rounds(stage):
        record = attention.benchmark_attention(quick=True, device=stage.device, suite=suite, piece=kept, say=stage.say)
    fastest = {kernel: list(own) for kernel, own in found["chosen"].items()}
    _keep(kept, record, {"blocks": {**found, "chosen": fastest}})
    for row in record.values["rows"]:
        stage.say(
            f"{row['task']}, {row['dtype']}, {row['length']}, width {row['width']}, batch {row['batch']}: "
            f"{row['subject']} / {row['baseline']} = {row['ratio']:.2f}, "
            f"{row['subject_seconds'] * 1e3:.3f} ms"
        )
    for kernel, own in fastest.items():
        stage.say(f"fastest blocks of {kernel}: {own}")
    return _ended(stage, [*found["left_out"], *record.values["left_out"]])


def _check_interpreter(stage: Stage) -> None:
    """
    Raises:
        InputError: this is a rehearsal without Triton's interpreter, or a GPU run with it.
    """
    if stage.is_rehearsal and not INTERPRETED:
        raise InputError("--rehearsal of attention runs under Triton's interpreter; set TRITON_INTERPRET=1 before it")
    if not stage.is_rehearsal and INTERPRETED:
        raise InputError("TRITON_INTERPRET=1 would run the kernels without the GPU; unset it, or add --rehearsal")


def _attention_suite(stage: Stage) -> attention.Suite:
    suite = attention.suite_of("cuda", quick=True)
    if not stage.is_rehearsal:
        return suite
    cells = [Case(40, 2, 16, torch.float32, task, batch=1, device=stage.device) for task in COMPARED_ON_GPU]
    return replace(suite, cells=cells, memory_cells=[], dtypes=(torch.float32,), widths=(16,), check_length=40)


def _trials(stage: Stage) -> list[block_sizes.Trial]:
    if stage.is_rehearsal:
        case = Case(40, 2, 16, torch.float32, "forward", device=stage.device)
        return block_sizes.trials(case, SMALL_BLOCKS)
    # as in the benchmark: 64 sequences in decoding, and otherwise enough tokens to keep a GPU busy
    made = block_sizes.trials(attention.suite_of("cuda", quick=True).cells[0])
    by_task = {case.task: case for case in reversed(attention.suite_of("cuda", quick=True).cells)}
    return [replace(trial, case=replace(by_task[trial.case.task], device=stage.device)) for trial in made]


def _compiled(stage: Stage, kept: Kept, trials: Sequence[block_sizes.Trial], suite: attention.Suite) -> None:
    """Compile everything that will be timed, with one process per core; Triton caches it on disk."""
    work = [(trial, own) for trial in trials for own in trial.candidates if trial.name not in kept.pieces]
    if not work and "gate" in kept.pieces:
        return
    stage.say(f"compiling {len(work)} candidates and the kernels of the check")
    workers = 1 if stage.is_rehearsal else os.cpu_count()
    with multiprocessing.get_context("spawn").Pool(workers) as pool:  # its processes end with the block
        tasks = [pool.apply_async(block_sizes.run_once, one) for one in work]
        tasks += [
            pool.apply_async(_one_form, (width, (dtype,), stage.device, suite.check_length, form))
            for width, dtype, form in product(suite.widths, suite.dtypes, ("V1", "V2"))
        ]
        try:
            for task in tasks:
                task.get(max(1.0, stage.left))
        except multiprocessing.TimeoutError:
            stage.say("compiling has taken all minutes")
    stage.say("compiled")


def _one_form(width: int, dtypes: Sequence[torch.dtype], device: str, length: int, form: str) -> None:
    """Run the correctness check of one version in order to compile its kernels; its result is not used."""
    try:
        attention.correctness(
            attention.HEADS // 2, width, 0, impl="triton", dtypes=dtypes, device=device, length=length, forms=(form,)
        )
    except RuntimeError as error:  # the benchmark's own check reports it and stops
        sys.stderr.write(f"{form}: {error}\n")


def model_setting(stage: Stage) -> model.Setting:
    """How models are timed: as on any GPU, or in the rehearsal's sizes."""
    if not stage.is_rehearsal:
        return model.setting_of(stage.device)
    sizes = {**model.SIZES, "vocab_size": 50, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
             "num_attention_heads": 4}  # fmt: skip
    return model.Setting(sizes, (16, 32), 32, is_half=True, pairs=model.PAIRS_ON_GPU)


def time_models(stage: Stage) -> int:
    """Stage ``model``: the short benchmark of complete models."""
    kept = Kept(stage)
    setting = model_setting(stage)
    if not stage.is_rehearsal:  # in one process, the check would take a minute and a half
        _compiled(stage, kept, [], _attention_suite(stage))
    record = model.benchmark_model(quick=True, device=stage.device, setting=setting, piece=kept, say=stage.say)
    _keep(kept, record, {})
    for row in record.values["rows"]:
        stage.say(
            f"{row['task']}, {row['length']} tokens: {row['subject']} / {row['baseline']} = {row['ratio']:.2f}, "
            f"{row['subject_seconds'] * 1e3:.1f} ms"
        )
    return _ended(stage, record.values["left_out"])


def _keep(kept: Kept, record: Record, more: dict[str, Any]) -> None:
    """Store the benchmark's own record, from which every report can make tables and figures, with the pieces."""
    kept.save(record.kind, {**record.values, **more}, record.config)


def _ended(stage: Stage, left_out: Sequence[str]) -> int:
    for name in left_out:
        stage.say(f"left out: {name}")
    return int(bool(left_out))


@contextmanager
def _few_rounds(stage: Stage) -> Iterator[None]:
    """In a rehearsal, repeat nothing, because the interpreter is slow."""
    before = attention.STEPS_OF_DECODING, attention.QUICK_SECONDS
    if stage.is_rehearsal:
        attention.STEPS_OF_DECODING, attention.QUICK_SECONDS = 1, 0.0
    try:
        yield
    finally:
        attention.STEPS_OF_DECODING, attention.QUICK_SECONDS = before
