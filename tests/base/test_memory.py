"""The peak memory of a process."""

import multiprocessing

import pytest

from antiphase.base import memory
from antiphase.base.memory import peak_memory, restart_peak

SIZE = 64 << 20


def held_and_freed(sender):
    """Peaks before and after a block of ``SIZE`` bytes that is freed, and after the count began anew."""
    restart_peak()
    before = peak_memory()
    block = bytearray(SIZE)
    block[::4096] = b"x" * len(block[::4096])
    del block
    after = peak_memory()
    restart_peak()
    sender.send((before, after, peak_memory()))


@pytest.mark.skipif(not memory.STATUS.exists(), reason="the count begins anew on Linux only")
def test_the_peak_holds_what_was_freed_until_the_count_begins_anew():
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=held_and_freed, args=(sender,))
    process.start()
    before, after, anew = receiver.recv()
    process.join()
    assert 0.9 * SIZE < after - before < 1.3 * SIZE
    assert anew < after - 0.9 * SIZE


def test_a_system_that_does_not_count_it_has_none(monkeypatch, tmp_path):
    monkeypatch.setattr(memory.sys, "platform", "linux")
    monkeypatch.setattr(memory, "STATUS", tmp_path / "status")
    (tmp_path / "status").write_text("Name:\tpython\nVmRSS:\t  100 kB\n")
    assert peak_memory() is None
    (tmp_path / "status").write_text("VmRSS:\t  100 kB\nVmHWM:\t  300 kB\n")
    assert peak_memory() == 300 * 1024
