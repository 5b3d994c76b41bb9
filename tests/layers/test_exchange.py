"""Sequences divided over processes: the outputs and gradients of one process, for every form and implementation."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import antiphase
from antiphase.layers.exchange import Exchange, check_heads

SCRIPT = Path(__file__).parents[1] / "support" / "exchanged.py"
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 24, "num_attention_heads": 8}
SHARED = {"num_key_value_heads": 2, "sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]}
"""V1 has one value head then, which every process needs."""


def case(kind, implementation="antiphase", *, packed=False, **fields):
    fields = {**SIZES, "attention_type": kind, **fields}
    return {"fields": fields, "implementation": implementation, "packed": packed, "recompute": packed}


CASES = [
    *(case(kind) for kind in ("softmax", "differential", "differential_v2")),
    *(case(kind, implementation, packed=packed, **SHARED) for kind in ("softmax", "differential", "differential_v2")
      for implementation in ("antiphase", "eager", "sdpa") for packed in (False, True)),
    *(case(kind, "flex_attention", packed=packed, num_key_value_heads=4, head_dim=16)
      for kind in ("softmax", "differential_v2") for packed in (False, True)),
    case("softmax", sink_logits=True),
    case("differential", lambda_form="head", output_gate=True),
    case("differential", packed=True, num_noise_heads=2),
    case("differential_v2", lambda_form="fixed"),
    case("differential_v2_across", packed=True, num_key_value_heads=4),
]  # fmt: skip
FIRST = [*CASES[:3], *(one for one in CASES if one["packed"] and one["implementation"] == "antiphase")]
"""Every kind, whole and with several texts in a sequence."""
REST = [one for one in CASES if one not in FIRST]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "cases"), [pytest.param(2, FIRST, marks=pytest.mark.essential), (2, REST), (4, CASES)],
    ids=["2-first", "2-rest", "4-all"],
)  # fmt: skip
def test_divided_sequences_have_the_outputs_and_gradients_of_whole_ones(tmp_path, processes, cases):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    done = subprocess.run(
        [*launcher, str(SCRIPT), json.dumps(cases), str(tmp_path / "found.json")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert len(found) == processes
    for of_process in found:
        for one, worst in zip(cases, of_process, strict=True):
            is_flex = one["implementation"] == "flex_attention"  # in fp32
            assert worst["logits"] < (1e-6 if is_flex else 1e-13), one
            assert ("gradients" not in worst) if is_flex else worst["gradients"] < 1e-13, one


def test_processes_have_their_own_tokens():
    whole = torch.arange(24).view(2, 12)
    parts = [Exchange("", 3, rank).own(whole) for rank in range(3)]
    assert torch.equal(torch.cat(parts, dim=1), whole)
    assert torch.equal(parts[1], whole[:, 4:8])


@pytest.mark.parametrize(("heads", "groups", "count"), [(8, 8, 3), (8, 2, 16), (12, 3, 2), (2, 1, 4)])
def test_heads_that_processes_do_not_divide_are_refused(heads, groups, count):
    with pytest.raises(ValueError, match=rf"^{count} processes do not divide {heads} heads"):
        check_heads(heads, groups, count)


def test_autocast_rounds_what_is_exchanged_but_for_float64(monkeypatch):
    monkeypatch.setattr(Exchange, "_swapped", lambda exchange, value: value.movedim(1, 0))
    for given, rounded in ((torch.float32, torch.bfloat16), (torch.float64, torch.float64)):
        maps = (torch.randn(1, 2, 3, 4, dtype=given) for _ in range(3))
        with torch.autocast("cpu"):
            found = Exchange("", 1, 0)._heads(torch.nn.Module(), *maps)
        assert {one.dtype for one in found} == {rounded}


def test_what_parts_of_sequences_cannot_do_is_refused():
    model = antiphase.AntiphaseForCausalLM(antiphase.AntiphaseConfig(vocab_size=61, **SIZES))
    ids, exchange = torch.zeros(1, 7, dtype=torch.int64), Exchange("none", 2, 0)
    with pytest.raises(ValueError, match="2 processes do not divide 7 tokens evenly"):
        model(ids, exchange=exchange, use_cache=False)
    with pytest.raises(ValueError, match="cannot be combined with a cache; set use_cache=False"):
        model(ids, exchange=exchange)
    with pytest.raises(ValueError, match="labels cannot be combined with exchange"):
        model(ids, labels=ids, exchange=exchange)
