"""Tasks in processes of their own, as many at a time as a pool has places."""

from __future__ import annotations

import signal
import time
from collections.abc import Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol

from antiphase.base.errors import BrokenRunError, InputError, Interrupted
from antiphase.base.folders.ownership import is_in_use
from antiphase.lab.training.execution.executor import Command, Pool, Running
from antiphase.lab.training.stops import TERMINATIONS, handled

POLL_SECONDS = 0.5
LONGEST = 100
"""Characters of a broken run's last line in a message."""
ENDED = (130, -signal.SIGINT, *(code for number in TERMINATIONS for code in (128 + number, -number)))
"""Exit codes of processes that were asked to end."""


class FolderTask(Protocol):
    """Work whose result is a folder."""

    @property
    def name(self) -> str:
        """In messages."""

    @property
    def folder(self) -> Path:
        """Folder that its process locks."""

    @property
    def accepted(self) -> Container[int]:
        """Exit codes of processes that have left a result."""

    def command(self, threads: int) -> Command:
        """What is started; files that it needs are written now."""

    def is_done(self) -> bool:
        """Whether its result is there."""

    def check(self) -> None:
        """Look at a result.

        Raises:
            InputError: it cannot be used.
        """

    def report(self, *, done: bool) -> None:
        """Pass its progress on."""


def run_tasks(tasks: Sequence[FolderTask], pool: Pool, *, stopped: str = "finished runs are kept") -> None:
    """Run every task that has no result yet.

    A process that a killed command left behind, and that is still going, counts as one of the pool; it is waited for.

    Args:
        stopped: what an interruption says.

    Raises:
        InputError: a process refused its settings; the message is its own. Or a result cannot be used.
        Interrupted: Ctrl-C or termination; every process was asked to end and has.
        BrokenRunError: a process broke; the message names its log, and the others were asked to end and have.
    """
    waiting = list(tasks)
    running: dict[FolderTask, Running] = {}
    logs: dict[FolderTask, Path] = {}
    with ExitStack() as stack:
        stack.enter_context(_terminated_like_ctrl_c())
        stack.callback(_stop, running)
        try:
            while waiting or running:
                left_behind = [task for task in waiting if is_in_use(task.folder)]
                for task in [task for task in waiting if task not in left_behind]:
                    if task.is_done():
                        task.check()
                        waiting.remove(task)
                        task.report(done=True)
                    elif len(running) + len(left_behind) < pool.slots:
                        waiting.remove(task)
                        command = task.command(pool.threads)
                        running[task], logs[task] = pool.start(command), command.log
                if not waiting and not running:
                    break
                time.sleep(POLL_SECONDS)
                for task in left_behind:
                    task.report(done=False)
                for task, process in list(running.items()):
                    code = process.poll()
                    if code is not None:
                        del running[task]
                        _check_code(task, code, logs[task])
                        task.check()
                    task.report(done=code is not None)
        except KeyboardInterrupt:
            raise Interrupted(stopped) from None


def _check_code(task: FolderTask, code: int, log: Path) -> None:
    if code in task.accepted:
        return
    lines = [line.rstrip() for line in log.read_text(encoding="utf-8", errors="replace").split("\n") if line.strip()]
    last = lines[-1] if lines else "it printed nothing"
    if code == 2:
        raise InputError(last.removeprefix("antiphase: "))
    if code in ENDED:
        raise Interrupted(f"the run {task.name} was stopped")
    raise BrokenRunError(f"the run {task.name} ended with code {code}: {last[:LONGEST]} (whole log: {log})")


@contextmanager
def _terminated_like_ctrl_c() -> Iterator[None]:
    """A termination signal stops the processes as Ctrl-C does; by itself it would end this one and leave them going.

    Only the first does: a terminal that closes sends two, and others must not disturb the wait for the processes.
    """
    arrived: list[int] = []

    def handle(number: int) -> None:
        arrived.append(number)
        if len(arrived) == 1:
            raise KeyboardInterrupt

    with handled(TERMINATIONS, handle):
        yield


def _stop(running: dict[FolderTask, Running]) -> None:
    """Ask the running processes to write a checkpoint and end, and wait for them."""
    for process in running.values():
        process.stop()
    for process in running.values():
        process.wait()
