"""The peak memory of a process."""

import ctypes
import multiprocessing
import resource
import sys

import pytest

from antiphase.base import memory
from antiphase.base.memory import keep_freed_memory, peak_memory, restart_peak

SIZE = 64 << 20
PR_SET_THP_DISABLE = 41


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


def said_by(function, *args):
    """What a function sends from a process of its own."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=function, args=(sender, *args))
    process.start()
    found = receiver.recv()
    process.join()
    return found


def new_pages(sender, keeps):
    """Small pages that the system gives out while four blocks of 24 MiB are taken and freed again and again."""
    ctypes.CDLL(None).prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)
    if keeps:
        keep_freed_memory()
    for again in range(4):
        if again == 1:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [bytearray(24 << 20) for _ in range(4)]
        del blocks
    sender.send(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)


@pytest.mark.skipif(
    sys.platform != "linux" or not hasattr(ctypes.CDLL(None), "mallopt"), reason="glibc alone has the switch"
)
def test_freed_memory_is_kept_where_that_is_asked():
    assert said_by(new_pages, False) > 40_000
    assert said_by(new_pages, True) < 1_000


@pytest.mark.skipif(not memory.STATUS.exists(), reason="the count begins anew on Linux only")
def test_the_peak_holds_what_was_freed_until_the_count_begins_anew():
    before, after, anew = said_by(held_and_freed)
    assert 0.9 * SIZE < after - before < 1.3 * SIZE
    assert anew < after - 0.9 * SIZE


def test_a_system_that_does_not_count_it_has_none(monkeypatch, tmp_path):
    monkeypatch.setattr(memory.sys, "platform", "linux")
    monkeypatch.setattr(memory, "STATUS", tmp_path / "status")
    (tmp_path / "status").write_text("Name:\tpython\nVmRSS:\t  100 kB\n")
    assert peak_memory() is None
    (tmp_path / "status").write_text("VmRSS:\t  100 kB\nVmHWM:\t  300 kB\n")
    assert peak_memory() == 300 * 1024
