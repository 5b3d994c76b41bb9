"""Cost of the evaluation loops: many-shot sweeps against ``generate``, long prompts against a prefill, and memory.

    python -m benchmarks.evaluation_loops --output runs/loops

Sweeps choose among labels after shared examples in several orders (``choose_options``), compared with ``generate`` on
one prompt after the other; the candidates alternate. The memory of the loss by position over long texts is measured in
separate processes. Takes about six minutes on two cores; ``--quick`` takes seconds, at sizes too small for conclusions.
Writes a record.
"""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from antiphase import AntiphaseConfig, AntiphaseForCausalLM
from antiphase.lab.measures.long_context.measure import losses_by_position
from antiphase.lab.scoring.constrained import choose_options
from antiphase.lab.scoring.likelihood import TOKENS_AT_ONCE
from antiphase.lab.speed.memory import peak_of
from antiphase.lab.speed.timing import paired_times, ratios
from tools.script import CONSOLE, script

Prompt = list[int]
Choose = Callable[[PreTrainedModel, Sequence[Prompt]], list[int]]
"""Indices of the labels chosen after the prompts."""

OURS, LLAMA = "differential", "Llama"
GENERATE, CHOOSE, PREFILL = "generate, one at a time", "choose_options", "plain prefill"
OWN, SHARED = f"{CHOOSE}, own prompts", f"{CHOOSE}, shared examples"
LABELS: tuple[tuple[int, ...], ...] = ((10,), (11,), (12, 13), (16, 17), (18, 19, 20), (12, 14, 15))
"""Six labels of one to three tokens, like TREC's; two begin with the same token, and the last is never correct."""
ASKED = len(LABELS) - 1
FIRST, LINE_END, FIRST_CUE, FIRST_WORD = 1, 2, 30, 40
"""Ids: first token of a text, token after a label, last token of a question with the first label, first word."""
QUESTION = (8, 16)
"""Smallest and largest number of tokens in a question, including its cue."""
PLANTED = 4.0
"""Logit of a token planted after another one; random logits are about 0.3."""


SIZES: dict[str, Any] = {
    "vocab_size": 4096, "hidden_size": 256, "intermediate_size": 682, "num_hidden_layers": 6, "num_attention_heads": 8,
}  # fmt: skip
DOCUMENT_SIZES: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip
"""Sizes of the model that reads complete documents."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Sizes of all measurements."""

    sizes: dict[str, Any]
    document_sizes: dict[str, Any]
    lengths: tuple[int, ...]
    """Numbers of tokens in the longest prompt of a sweep."""
    orders: int
    samples: int
    """Number of samples asked after each order."""
    long_lengths: tuple[int, ...]
    long_tokens: int
    """Total number of tokens in long prompts."""
    document_lengths: tuple[int, ...]
    rounds: int
    seconds: float
    """Time after which no round of a comparison begins, except for the first three."""


FULL = Workload(
    sizes=SIZES, document_sizes=DOCUMENT_SIZES, lengths=(128, 256, 512), orders=3, samples=16,
    long_lengths=(4096, 8192), long_tokens=TOKENS_AT_ONCE, document_lengths=(8192, 16384, 32768, 65536), rounds=7,
    seconds=20.0,
)  # fmt: skip
QUICK = Workload(
    sizes={**SIZES, "vocab_size": 128, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    document_sizes={**DOCUMENT_SIZES, "hidden_size": 16, "intermediate_size": 24}, lengths=(48, 96), orders=2,
    samples=6, long_lengths=(256,), long_tokens=768, document_lengths=(2048, 4096), rounds=3, seconds=1.0,
)  # fmt: skip


def measure(chosen: Namespace) -> dict[str, Any]:
    """Time and memory."""
    started, workload = time.perf_counter(), QUICK if chosen.quick else FULL

    def say(message: str) -> None:
        CONSOLE.print(f"[{time.perf_counter() - started:5.0f} s] {message}", markup=False)

    models = build_models(workload, chosen.seed)
    rows = [row for name, model in models.items() for row in sweeps(name, model, workload, chosen.seed, say)]
    rows += [row for name, model in models.items() for row in long_prompts(name, model, workload, chosen.seed, say)]
    memory = documents(workload, chosen.seed, say)
    growth = memory[-1]["bytes_per_token"] / memory[0]["bytes_per_token"]
    for line in table(rows, memory):
        CONSOLE.print(line, soft_wrap=True)
    CONSOLE.print(f"bytes a token, longest / shortest: {growth:.2f}")
    parameters = {name: model.num_parameters() for name, model in models.items()}
    config = {**asdict(workload), "width": width_of(workload.sizes), "labels": LABELS, "quick": chosen.quick}
    values = {"rows": rows, "memory": memory, "memory_growth": growth, "parameters": parameters}
    return {"values": values, "config": config, "seeds": [chosen.seed]}


def table(rows: Sequence[Mapping[str, Any]], memory: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line per comparison and per document."""
    lines = []
    for row in rows:
        low, high = row["speed_quartiles"]
        lines.append(
            f"{row['task']:<29} N = {row['length']:>6,}  {row['subject']:<31} {row['subject_rate']:>8,.1f} "
            f"{row['unit']}/s, {row['baseline']} {row['baseline_rate']:>8,.1f}: × {row['speed']:.2f} "
            f"[{low:.2f}–{high:.2f}]"
        )
    lines += [
        f"{row['task']:<29} N = {row['length']:>6,}  {row['bytes'] / 2**20:>7.1f} MiB, "
        f"{row['bytes_per_token']:>6,.0f} bytes a token"
        for row in memory
    ]
    return lines


def build_models(workload: Workload, seed: int) -> dict[str, PreTrainedModel]:
    """A differential model and a Llama of equal size, with random weights and planted answers."""
    sizes = {
        **workload.sizes, "max_position_embeddings": 2 * max(*workload.lengths, *workload.long_lengths),
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
    }  # fmt: skip
    with torch.random.fork_rng(devices=[]):  # transformers draws initial weights from the global generator
        torch.manual_seed(seed)
        models: dict[str, PreTrainedModel] = {
            OURS: AntiphaseForCausalLM(AntiphaseConfig(attention_type="differential", **sizes)).eval(),
            LLAMA: LlamaForCausalLM(LlamaConfig(**sizes)).eval(),
        }
        for model in models.values():
            plant(model)
    return models


@torch.no_grad()
def plant(model: PreTrainedModel) -> None:
    """Change weights so that each cue is followed by its label and a line end, whatever precedes the cue.

    Then the answers are known, and unconstrained greedy decoding writes them. All weights are still used in every step.
    """
    table, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    chains = [(FIRST_CUE + index, *label, LINE_END) for index, label in enumerate(LABELS[:ASKED])]
    calling = [token for chain in chains for token in chain[:-1]]
    table.normal_()
    directions = torch.nn.init.orthogonal_(table.new_empty(len(calling), table.shape[1]))  # cues do not interfere
    table[calling] = directions * table.shape[1] ** 0.5
    direction = dict(zip(calling, directions, strict=True))
    for before, after in (pair for chain in chains for pair in pairwise(chain)):
        head[after] += PLANTED * direction[before]


def sweep_prompts(
    length: int, orders: int, samples: int, vocabulary: int, seed: int
) -> tuple[list[list[Prompt]], list[int]]:
    """Prompts of each order of the same examples, at most ``length`` tokens each, and the labels asked for.

    The labels are the same in every order and are asked for in turn.
    """
    generator = torch.Generator().manual_seed(seed)
    labels = [index % ASKED for index in range(samples)]
    questions = [_question(label, vocabulary, generator) for label in labels]
    examples: list[Prompt] = []
    room = length - 1 - max(map(len, questions))
    while sum(map(len, examples)) < room:
        label = len(examples) % len(LABELS)
        examples.append([*_question(label, vocabulary, generator), *LABELS[label], LINE_END])
    examples[-1] = examples[-1][: room - sum(map(len, examples[:-1]))]
    found = []
    for _ in range(orders):
        order = torch.randperm(len(examples), generator=generator).tolist()
        shown = [token for index in order for token in examples[index]]
        found.append([[FIRST, *shown, *question] for question in questions])
    return found, labels


def _question(label: int, vocabulary: int, generator: torch.Generator) -> Prompt:
    count = int(torch.randint(QUESTION[0] - 1, QUESTION[1], (), generator=generator))
    return [*torch.randint(FIRST_WORD, vocabulary, (count,), generator=generator).tolist(), FIRST_CUE + label]


def chosen_by_generate(model: PreTrainedModel, prompts: Sequence[Prompt]) -> list[int]:
    """Indices of the labels that greedy decoding writes up to the end of the line, prompt by prompt; -1 if none."""
    found = []
    for prompt in prompts:
        ids = torch.tensor([prompt], device=model.device)
        output = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=max(map(len, LABELS)), do_sample=False,
            eos_token_id=LINE_END, pad_token_id=LINE_END,
        )  # fmt: skip
        written = tuple(token for token in output[0, len(prompt) :].tolist() if token != LINE_END)
        found.append(LABELS.index(written) if written in LABELS else -1)
    return found


def chosen_by_loop(model: PreTrainedModel, prompts: Sequence[Prompt]) -> list[int]:
    """Answers to all prompts at once, decoded over the labels only."""
    return choose_options(model, prompts, [LABELS] * len(prompts))


def _in_each_order(choose: Choose, model: PreTrainedModel, by_order: Sequence[Sequence[Prompt]]) -> list[list[int]]:
    return [choose(model, prompts) for prompts in by_order]


def sweeps(
    name: str, model: PreTrainedModel, workload: Workload, seed: int, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Samples per second of many-shot sweeps, order by order.

    Raises:
        RuntimeError: a method gives other answers than were planted; incorrect code is not timed.
    """
    rows = []
    for length in workload.lengths:
        by_order, labels = sweep_prompts(length, workload.orders, workload.samples, workload.sizes["vocab_size"], seed)
        work = {
            CHOOSE: partial(_in_each_order, chosen_by_loop, model, by_order),
            GENERATE: partial(_in_each_order, chosen_by_generate, model, by_order),
        }
        for way, run in work.items():
            _check(run(), [labels] * workload.orders, f"{way}, {name}, {length} tokens")
        say(f"timing many-shot sweeps, {name}, {length:,} tokens")
        count = workload.orders * workload.samples
        what = {"task": f"many-shot sweep, {name}", "length": length, "batch": workload.samples}
        rows += _compared(what, work, workload, dict.fromkeys(work, count), "samples")
    return rows


def long_prompts(
    name: str, model: PreTrainedModel, workload: Workload, seed: int, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Prompt tokens per second if prompts share nothing, and if they share everything except the question.

    Raises:
        RuntimeError: the answers differ from the planted ones.
    """
    rows = []
    for length in workload.long_lengths:
        count = workload.long_tokens // length
        vocabulary = workload.sizes["vocab_size"]
        (shared,), labels = sweep_prompts(length, 1, count, vocabulary, seed)
        own = [sweep_prompts(length, 1, count, vocabulary, seed + 1 + row)[0][0][row] for row in range(count)]
        ids = torch.randint(vocabulary, (count, length), generator=torch.Generator().manual_seed(seed))
        for kind, prompts in (("own", own), ("shared", shared)):
            _check(chosen_by_loop(model, prompts), labels, f"{kind} prompts, {name}, {length} tokens")
        _prefill(model, ids)  # as warm as the others, which were checked
        work: dict[str, Callable[[], object]] = {
            PREFILL: partial(_prefill, model, ids),
            OWN: partial(chosen_by_loop, model, own),
            SHARED: partial(chosen_by_loop, model, shared),
        }
        counts = {PREFILL: ids.numel(), OWN: sum(map(len, own)), SHARED: sum(map(len, shared))}
        say(f"timing long prompts, {name}, {length:,} tokens")
        what = {"task": f"long prompts, {name}", "length": length, "batch": count}
        rows += _compared(what, work, workload, counts, "tokens")
    return rows


@torch.no_grad()
def _prefill(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = model(input_ids=ids, use_cache=True, logits_to_keep=1).logits
    return logits


def _check(found: object, expected: object, what: str) -> None:
    if found != expected:
        raise RuntimeError(f"{what}: got the answers {found}, planted were {expected}")


def _compared(
    what: dict[str, Any],
    work: Mapping[str, Callable[[], object]],
    workload: Workload,
    counts: Mapping[str, int],
    unit: str,
) -> list[dict[str, Any]]:
    """Each candidate and the baseline, in seconds and rates; ``speed`` is rate / the baseline's, within rounds."""
    baseline = GENERATE if GENERATE in work else PREFILL
    times = paired_times(
        work, rounds=workload.rounds, seconds=workload.seconds, warm_up=0
    )  # already warm from the check
    rows = []
    for name in work:
        if name == baseline:
            continue
        row = ratios(times, name, baseline)
        share = counts[name] / counts[baseline]
        rows.append(
            {
                **what, "dtype": "float32", "width": width_of(workload.sizes), **row, "unit": unit,
                "subject_rate": statistics.median(counts[name] / seconds for seconds in times[name]),
                "baseline_rate": statistics.median(counts[baseline] / seconds for seconds in times[baseline]),
                "speed": share / row["ratio"],
                "speed_quartiles": [share / ratio for ratio in reversed(row["quartiles"])],
            }
        )  # fmt: skip
    return rows


def documents(workload: Workload, seed: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Peak memory of the loss by position over one document, by document length."""
    rows = []
    for length in workload.document_lengths:
        say(f"weighing loss by position, {length:,} tokens")
        found = peak_of(document_call, workload.document_sizes, length, seed, what=f"loss by position, {length} tokens")
        rows.append(
            {
                "task": "loss by position", "dtype": "float32", "length": length, "batch": 1,
                "width": width_of(workload.document_sizes), "scheme": "losses_by_position", "bytes": found,
                "bytes_per_token": found / length,
            }
        )  # fmt: skip
    return rows


def document_call(limit: int, sizes: dict[str, Any], length: int, seed: int) -> Callable[[], object]:
    """A call that computes the loss by position of one document of random tokens."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = AntiphaseConfig(attention_type="differential", max_position_embeddings=length, **sizes)
        model = AntiphaseForCausalLM(config).eval()
    shape = (1, min(length, limit))
    ids = torch.randint(sizes["vocab_size"], shape, generator=torch.Generator().manual_seed(seed))
    return lambda: losses_by_position(model, ids)


def width_of(sizes: Mapping[str, Any]) -> int:
    """Width of one map."""
    return int(sizes["hidden_size"] // sizes["num_attention_heads"])


if __name__ == "__main__":
    quick = {"action": "store_true", "help": "small sizes, to see that everything runs"}
    script(__doc__, "benchmark-evaluation", measure, {"--quick": quick, "--seed": 0})
