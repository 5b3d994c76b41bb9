"""Versions, hardware and kernels for a bug report."""

import os

import torch


def test_env_names_versions(antiphase):
    code, out, _ = antiphase("env")
    assert code == 0
    assert torch.__version__.partition("+")[0] in out
    assert str(os.cpu_count()) in out
    if not torch.cuda.is_available():
        assert "GPU kernels  no CUDA device" in out


def test_env_says_why_the_gpus_kernels_do_not_run(antiphase, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("antiphase.base.records.environment", dict)
    for reason, said in (("they need a C compiler", "they need a C compiler"), (None, "triton")):
        monkeypatch.setattr("antiphase.ops.implementations.why_no_kernels", lambda device, reason=reason: reason)
        assert f"GPU kernels  {said}" in antiphase("env")[1]
