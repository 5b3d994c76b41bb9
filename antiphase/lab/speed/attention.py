"""The operator compared with softmax attention of equal size and with the methods of subtraction in public code."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from antiphase.base.records import Record
from antiphase.lab.speed.conditions import Condition, conditions
from antiphase.lab.speed.gpu_schemes import BLOCKWISE_V2, COMPARED_ON_GPU, FLASH, FLASH_DIFFLLAMA, FLEX, FUSED, FUSED_V2
from antiphase.lab.speed.memory import peak_extra_bytes
from antiphase.lab.speed.pieces import Piece, Pieces, at_once
from antiphase.lab.speed.schemes import (
    BLOCKWISE,
    CAPTURED,
    COMPARED,
    DIFFLLAMA,
    FOUR_CALLS,
    JOINED_KEYS,
    OURS,
    OURS_V2,
    SOFTMAX,
    WITH_NATIVE,
    Case,
    Scheme,
    work,
)
from antiphase.lab.speed.timing import dtype_name, paired_times, product_rate, ratios, waiting
from antiphase.layers.functions import differential_output, join_halves
from antiphase.ops.api import differential_attention
from antiphase.ops.native.library import kernels, why_not_built

HEADS, WIDTH = 8, 64
CHECK_LENGTH = 257
CHECKED_ON_GPU = (torch.float32, torch.bfloat16, torch.float16)
SHORT_CACHES = (64, 256)
"""With so few keys, the overhead of calls before the kernel is largest relative to the total time."""
LONGEST_WITH_MAPS = 1024
"""Methods that store N × N weights are skipped beyond this length, where they take eight times as long."""
LONGEST_OF_ALL = 4096
"""Beyond this length, where a round takes a minute, only one of two equally expensive methods is timed, in fp32."""
STEPS_OF_DECODING, CALLS_ON_GPU = 50, 10
"""Calls per round: a decoding step takes microseconds to milliseconds, and a GPU runs calls asynchronously."""
QUICK_SECONDS, CELL_SECONDS = 3.0, 8.0
"""Time after which no further round of a comparison begins."""


@dataclass(frozen=True)
class Suite:
    """The cases to time on a kind of device."""

    cells: Sequence[Case]
    """The most informative first."""
    memory_cells: Sequence[Case]
    compared: Mapping[str, Sequence[tuple[Scheme, Sequence[Scheme]]]]
    memory: Sequence[Scheme]
    impl: str
    """The implementation whose correctness is checked."""
    dtypes: Sequence[torch.dtype]
    """Dtypes in which it is checked."""
    may_fail: bool = False
    """Whether backends are selected by name, which a device may not have."""
    widths: Sequence[int] = (32, 64, 128)
    """Widths at which it is checked."""
    check_length: int = CHECK_LENGTH
    conditions: Sequence[Condition] = ()
    """Conditions under which some cells are timed again."""
    cells_by_condition: Sequence[Case] = ()


def suite_of(device: str, *, quick: bool) -> Suite:
    """The operator on a CPU, the kernels on a GPU."""
    return _on_gpu(device, quick=quick) if torch.device(device).type == "cuda" else _on_cpu(quick=quick)


def _on_cpu(*, quick: bool) -> Suite:
    lengths = (1024, 4096) if quick else (1024, 4096, 16384)
    dtypes = (torch.float32, torch.bfloat16)
    found = [
        Case(length, HEADS, WIDTH, dtype, task)
        for task in COMPARED
        for dtype in dtypes
        for length in ((*SHORT_CACHES, *lengths) if task == "decode" else lengths)
    ]
    memory = [Case(4096, HEADS, WIDTH, torch.float32, "forward + backward")]
    by_condition: list[Case] = []
    if not quick:
        tasks = ("forward", "forward + backward")
        other_widths = [(4 * HEADS // 2, WIDTH // 2), (HEADS // 2, 2 * WIDTH)]
        found += [
            Case(4096, heads, width, torch.float32, task) for heads, width in other_widths for task in tasks
        ]  # fmt: skip
        memory = [Case(n, HEADS, WIDTH, torch.float32, task) for n in (4096, 16384) for task in tasks]
        by_condition = [Case(4096, HEADS, WIDTH, torch.float32, task) for task in COMPARED]
    impl = "blockwise" if why_not_built() else "native"
    return Suite(
        found, memory, COMPARED, (OURS, SOFTMAX, *WITH_NATIVE, DIFFLLAMA, OURS_V2), impl, dtypes,
        conditions=conditions(), cells_by_condition=by_condition,
    )  # fmt: skip


def _on_gpu(device: str, *, quick: bool) -> Suite:
    found = [
        Case(length, HEADS, width, torch.bfloat16, task, batch=batch, device=device)
        for width in ((WIDTH,) if quick else (WIDTH, 2 * WIDTH))
        for task in COMPARED_ON_GPU
        for length in (4096, 16384)
        for batch in _batches(task, length, width)
    ]
    if quick:
        found.append(Case(4096, HEADS // 2, 2 * WIDTH, torch.bfloat16, "forward + backward", batch=4, device=device))
    found.append(Case(4096, HEADS, WIDTH, torch.float32, "forward + backward", device=device))
    memory = [case for case in found if not case.decodes and case.width == WIDTH and case.dtype == torch.bfloat16]
    return Suite(
        found, memory, COMPARED_ON_GPU, (FUSED, FLASH, FLASH_DIFFLLAMA, FUSED_V2), "triton",
        (torch.bfloat16, torch.float32) if quick else CHECKED_ON_GPU, may_fail=True,
        widths=(WIDTH, 2 * WIDTH) if quick else (32, 64, 128),
    )  # fmt: skip


def _batches(task: str, length: int, width: int) -> tuple[int, ...]:
    """Batch sizes that keep a GPU busy for longer than the launch of a call, plus a single sequence in decoding."""
    return (64 * WIDTH // width, 1) if task in ("decode", CAPTURED) else (max(1, 16384 // length),)


def benchmark_attention(
    *,
    quick: bool = False,
    seed: int = 0,
    device: str = "cpu",
    suite: Suite | None = None,
    piece: Piece = at_once,
    say: Callable[[str], None] = lambda message: None,
) -> Record:
    """Benchmark causal attention: forward, forward + backward, and one query over a cache. Incorrect code is not timed.

    Args:
        suite: the cases to time; None means those of the device.
        piece: runs the pieces of the work; the record names those that were skipped.

    Raises:
        RuntimeError: an implementation's error is larger than the tolerance rule allows.
    """
    started = time.perf_counter()
    suite = suite or suite_of(device, quick=quick)
    rounds, seconds = (5, QUICK_SECONDS) if quick else (15, CELL_SECONDS)
    done = Pieces(piece)
    say("checking correctness")
    checked = done.rows("gate", partial(check_suite, suite, seed, device))
    cells = suite.cells if checked else []
    rates = {
        dtype_name(dtype): rate
        for dtype in {case.dtype: None for case in cells}
        for rate in done(f"product rate, {dtype_name(dtype)}", partial(product_rate, dtype, device=device))
    }

    def clock(case: Case) -> _Clock:
        return _Clock(rounds, seconds, seed, quick, rates[dtype_name(case.dtype)], say)

    rows, failed = _compared(suite, [case for case in cells if dtype_name(case.dtype) in rates], clock, done)
    by_condition = _by_condition(suite, clock, done) if checked else []
    memory = _memory_rows(suite, failed, seed, done, say) if checked else []
    return Record(
        kind="benchmark-attention",
        values={
            "gate": checked,
            "rows": rows,
            "failed": failed,
            "conditions": by_condition,
            "memory": memory,
            "product_rate": rates,
            "left_out": done.left_out,
        },
        config={
            "heads": HEADS,
            "width": WIDTH,
            "causal": True,
            "rounds": rounds,
            "seconds": seconds,
            "quick": quick,
            "device": device,
            "impl": suite.impl,
            "kernels": kernels() if suite.impl == "native" else None,
        },
        seeds=[seed],
        seconds=time.perf_counter() - started,
    )


Rows = list[dict[str, Any]]


def _compared(suite: Suite, cells: Sequence[Case], clock: Callable[[Case], _Clock], done: Pieces) -> tuple[Rows, Rows]:
    """Every scheme and its baselines in every cell; and the schemes that the device does not support, once each."""
    rows: Rows = []
    failed: Rows = []
    for case in cells:
        for subject, baselines in suite.compared[case.task]:
            compare = partial(clock(case).compared, suite, case, subject, baselines)
            for found in done(f"{subject.name}: {_words(case)}", compare):
                rows += found["rows"]
                failed += [row for row in found["failed"] if row not in failed]
    return rows, failed


def _by_condition(suite: Suite, clock: Callable[[Case], _Clock], done: Pieces) -> Rows:
    return [
        row
        for condition in suite.conditions
        for case in suite.cells_by_condition
        for row in done.rows(f"{_words(case)}, {condition.words}", partial(_under, condition, clock(case), suite, case))
    ]


def _memory_rows(suite: Suite, failed: Rows, seed: int, done: Pieces, say: Callable[[str], None]) -> Rows:
    """Peak memory of every scheme that the device supports, in every cell."""
    rows: Rows = []
    for case in suite.memory_cells:
        say(f"measuring memory: {_words(case)}")
        unable = {row["scheme"] for row in failed if _describe(case).items() <= row.items()}
        able = [scheme for scheme in suite.memory if scheme.name not in unable]
        rows += done.rows(f"memory: {_words(case)}", partial(_memory, case, able, seed))
    return rows


@dataclass(frozen=True)
class _Clock:
    """Timing of comparisons."""

    rounds: int
    seconds: float
    seed: int
    quick: bool
    rate: float
    say: Callable[[str], None]

    def compared(self, suite: Suite, case: Case, subject: Scheme, baselines: Sequence[Scheme]) -> dict[str, Any]:
        """Time a scheme and others in the same rounds: ``rows``, and ``failed`` for those that the device lacks."""
        able, failed = [], []
        for scheme in baselines:
            if not _is_timed(scheme, case, quick=self.quick):
                continue
            why = why_not(scheme, case, self.seed) if suite.may_fail else None
            if why is not None:
                failed.append({**_describe(case), "scheme": scheme.name, "why": why})
                self.say(f"{scheme.name} cannot do it: {_words(case)}: {why}")
                continue
            able.append(scheme)
        self.say(f"timing {subject.name}: {_words(case)}")
        repeats = STEPS_OF_DECODING if case.decodes else CALLS_ON_GPU if case.device != "cpu" else 1
        is_graph = case.task == CAPTURED and torch.device(case.device).type == "cuda"
        repeat = partial(captured, device=case.device) if is_graph else repeated
        timed = {scheme.name: repeat(work(scheme, case, self.seed), repeats) for scheme in (subject, *able)}
        # tens of seconds on a CPU, so there is nothing to warm up
        is_long = case.length > LONGEST_OF_ALL and repeats == 1
        times = paired_times(
            timed, rounds=3 * self.rounds if case.decodes else self.rounds, seconds=self.seconds,
            warm_up=0 if is_long else 1, device=case.device,
        )  # fmt: skip
        rows = []
        for baseline in able:
            row = ratios(times, subject.name, baseline.name)
            row["subject_seconds"] /= repeats
            row["baseline_seconds"] /= repeats
            rows.append({**_describe(case), **row, **_price(subject, baseline, case, row, self.rate)})
        return {"rows": rows, "failed": failed}


def _under(condition: Condition, clock: _Clock, suite: Suite, case: Case) -> list[dict[str, Any]]:
    """V1 compared with softmax attention (PyTorch's and the native one) and the portable method, under a condition."""
    subject, baselines = suite.compared[case.task][0]
    chosen = [scheme for scheme in baselines if scheme in (SOFTMAX, *WITH_NATIVE, BLOCKWISE)]
    clock.say(condition.words)
    with condition.holds():
        rows = clock.compared(suite, case, subject, chosen)["rows"]
    for row in rows:
        del row["share_of_product_rate"]  # the machine's rate of products was not measured under this condition
    return [{**row, **condition.described()} for row in rows]


def _memory(case: Case, schemes: Sequence[Scheme], seed: int) -> list[dict[str, Any]]:
    return [
        {**_describe(case), "scheme": scheme.name, "bytes": peak_extra_bytes(scheme, case, seed)} for scheme in schemes
    ]


def _is_timed(scheme: Scheme, case: Case, *, quick: bool) -> bool:
    if case.device != "cpu":
        if scheme is FLEX:  # compiling it takes longer than timing it
            return case.length <= LONGEST_OF_ALL and case.dtype != torch.float32
        if scheme in (BLOCKWISE, BLOCKWISE_V2):  # a hundred times as slow in half precision
            return case.length <= LONGEST_OF_ALL and (not quick or case.dtype == torch.float32)
        return True
    if scheme.cache_dtype == case.dtype:  # the ordinary method again
        return False
    if scheme.holds_maps:
        return not quick and case.length <= LONGEST_WITH_MAPS and case.dtype == torch.float32
    if scheme in (FOUR_CALLS, BLOCKWISE, JOINED_KEYS):
        return not quick and case.length <= LONGEST_OF_ALL
    if scheme is DIFFLLAMA and not case.decodes:
        return case.dtype == torch.float32 or case.length <= LONGEST_OF_ALL
    return True


def why_not(scheme: Scheme, case: Case, seed: int) -> str | None:
    """The error of a method that does not work on a GPU; None if it works."""
    from triton.runtime.errors import OutOfResources, PTXASError  # only needed on GPUs

    try:
        work(scheme, case, seed)()
        waiting(case.device)()
    except (RuntimeError, OutOfResources, PTXASError) as error:
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    return None


def repeated(run: Callable[[], object], count: int) -> Callable[[], object]:
    """A call that runs several times."""
    if count == 1:
        return run

    def repeat() -> None:
        for _ in range(count):
            run()

    return repeat


def captured(run: Callable[[], object], count: int, device: str) -> Callable[[], object]:
    """The same as a CUDA graph, whose replay launches nothing from the processor."""
    aside = torch.cuda.Stream(device)
    aside.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(aside):  # compiles and allocates before the capture
        for _ in range(3):
            run()
    torch.cuda.current_stream(device).wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device), torch.cuda.graph(graph):
        for _ in range(count):
            run()

    def replay(kept: Callable[[], object] = run) -> None:  # the graph reads the memory of the call's inputs
        graph.replay()

    return replay


def _describe(case: Case) -> dict[str, Any]:
    return {
        "task": case.task, "dtype": dtype_name(case.dtype), "length": case.length, "heads": case.heads,
        "width": case.width, "batch": case.batch,
    }  # fmt: skip


def _price(subject: Scheme, baseline: Scheme, case: Case, row: dict[str, Any], rate: float) -> dict[str, float | int]:
    """Computed numbers in addition to measured ones: operations, least bytes, share of the machine's peak rate."""
    flops = subject.flops(case)
    return {
        "flops": flops,
        "bytes": subject.least_bytes(case),
        "flops_ratio": flops / baseline.flops(case),
        "share_of_product_rate": flops / row["subject_seconds"] / rate,
    }


def _words(case: Case) -> str:
    words = f"{case.task}, {case.length:,} tokens, {case.heads} heads of {case.width}, {dtype_name(case.dtype)}"
    return words if case.device == "cpu" else f"{words}, {case.batch} at a time"


def check_suite(suite: Suite, seed: int, device: str) -> list[dict[str, Any]]:
    """Run ``correctness`` at the widths and dtypes of a suite."""
    return [
        row for width in suite.widths
        for row in correctness(
            HEADS // 2, width, seed, impl=suite.impl, dtypes=suite.dtypes, device=device, length=suite.check_length
        )
    ]  # fmt: skip


def correctness(
    heads: int, width: int, seed: int, *, impl: str = "blockwise",
    dtypes: Sequence[torch.dtype] = (torch.float32, torch.bfloat16), device: str = "cpu",
    length: int = CHECK_LENGTH, forms: Sequence[str] = ("V1", "V2"),
) -> list[dict[str, Any]]:  # fmt: skip
    """Check errors of output, gradients and decoding: ≤ 2 × (eager's in the same dtype + one rounding), against fp64.

    Errors are root mean squares over a tensor, because in bf16 its largest error depends on a few rows by chance.

    Raises:
        RuntimeError: an error is larger.
    """
    generator = torch.Generator(device).manual_seed(seed)
    drawn: dict[str, Any] = {"generator": generator, "dtype": torch.float64, "device": device}
    rows = []
    for form in forms:
        key_maps = 2 * heads if form == "V1" else heads
        exact = [torch.randn(1, maps, length, width, **drawn) for maps in (2 * heads, key_maps, key_maps)]
        lam = torch.rand(1, heads, length, **drawn)
        cotangent = torch.randn(1, heads, length, width * key_maps // heads, **drawn)
        for dtype in dtypes:
            low = [tensor.to(dtype) for tensor in (*exact, cotangent)]
            short = lam.float()
            truth = _results([t.double() for t in low], short.double(), "reference")
            eager = _results(low, short, "reference")
            fast = _results(low, short, impl)
            for name, true in truth.items():
                rounding = _distance(true.to(fast[name].dtype), true)
                error = _distance(fast[name], true)
                allowed = 2 * (_distance(eager[name], true) + rounding)
                row = {"form": form, "width": width, "dtype": dtype_name(dtype), "tensor": name}
                rows.append({**row, "error": error, "allowed": allowed})
                if not error <= allowed:
                    raise RuntimeError(
                        f"{form}, width {width}: {name} errs by {error:.3g} at {row['dtype']}, allowed {allowed:.3g}"
                    )
    return rows


def _distance(found: Tensor, true: Tensor) -> float:
    return (found.double() - true).square().mean().sqrt().item()


def _results(tensors: Sequence[Tensor], lam: Tensor, impl: str) -> dict[str, Tensor]:
    """Output, gradients and a decoding step, of the reference or of a fast implementation."""
    query, key, value, cotangent = tensors
    leaves = [tensor.detach().requires_grad_() for tensor in (query, key, value, lam)]
    halves = 2 if key.shape[1] == query.shape[1] else 1
    whole = join_halves(leaves[2]) if halves == 2 else leaves[2]
    out = differential_attention(leaves[0], leaves[1], whole, leaves[3], is_causal=True, impl=impl)
    found = dict(zip(("query", "key", "value", "lam"), torch.autograd.grad(out, leaves, cotangent), strict=True))
    last = slice(-1, None)
    with torch.no_grad():
        if impl == "reference":
            step = out[:, :, last]
        else:
            step = differential_output(
                query[:, :, last], key, value, lam[:, :, last], None,
                halves=halves, is_causal=False, sliding_window=None, scaling=None,
                impl=impl if impl == "triton" else "auto",
            ).transpose(1, 2)  # fmt: skip
    return {"out": out.detach(), **found, "decoding": step}
