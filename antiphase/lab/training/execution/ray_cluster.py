"""Jobs as tasks of a Ray cluster, which queues them and chooses their nodes.

A task starts the same process that ``local.py`` starts, and waits for it. Ray is asked for places and told of deaths,
nothing else: progress, logs and results are files on storage that all nodes see.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import socket
import uuid
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphase.base.errors import BrokenRunError, InputError
from antiphase.lab.training.execution import ray_node
from antiphase.lab.training.execution.executor import Command
from antiphase.lab.training.execution.queue import ENDED

CONNECT_SECONDS, PROBE_SECONDS = 5.0, 120.0
"""How long a cluster may take to answer, and a node to look at the storage."""
RESTARTS = 20
"""How often a run is started again, before it counts as one that kills its nodes."""
MISSING = "--executor ray needs the extra: pip install 'antiphase[cluster]'"


@dataclass(frozen=True)
class RayExecutor:
    """Runs jobs on the nodes of a running cluster. Each takes ``cpus`` CPUs and ``gpus`` GPUs of a node."""

    address: str | None
    """HOST:PORT of the head; None: the cluster that this machine belongs to."""
    cpus: int
    gpus: float

    def __post_init__(self) -> None:
        if importlib.util.find_spec("ray") is None:
            raise InputError(MISSING)

    def check(self, folder: Path, paths: Sequence[str], say: Callable[[str], None]) -> None:
        """Connect, and have every node that jobs may run on look at the storage.

        Raises:
            InputError: no cluster, no node that is large enough, or one that does not see the storage or has other
                versions.
        """
        dashboard = connect(self.address)
        nodes = self._usable(alive_nodes())
        count, each = len(nodes), f"{_number(self.cpus)} CPUs and {_number(self.gpus)} GPUs"
        shown = f"dashboard: http://{dashboard}" if dashboard else "no dashboard"
        say(f"Ray: {count} nodes for runs with {each} each; {shown}; logs: {folder / 'logs'}")
        probe(nodes, folder, paths)

    def _usable(self, nodes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Nodes with room for a job."""
        wanted = {"CPU": ("--job-cpus", self.cpus), "GPU": ("--job-gpus", self.gpus)}
        for resource, (flag, amount) in wanted.items():
            most = max((node["Resources"].get(resource, 0) for node in nodes), default=0)
            if amount > most:
                raise InputError(
                    f"{flag} {_number(amount)}: no node of the cluster has so many {resource}s, the largest "
                    f"has {_number(most)}; lower it, or add a node"
                )
        fit = [node for node in nodes
               if all(node["Resources"].get(name, 0) >= amount for name, (_, amount) in wanted.items())]  # fmt: skip
        if not fit:
            raise InputError(
                f"--job-cpus {self.cpus} and --job-gpus {_number(self.gpus)}: no node of the cluster has both; lower "
                "one of them"
            )
        return fit

    def pool(self, devices: Sequence[str], wanted: int | None, say: Callable[[str], None]) -> RayPool:
        """All jobs are handed to Ray at once, which starts them as nodes have room, unless fewer are wanted."""
        return RayPool(wanted or len(devices), self.cpus, self.gpus, say)

    def close(self) -> None:
        """Leave the cluster."""
        import ray

        ray.shutdown()


@dataclass(frozen=True)
class RayPool:
    """Places on the cluster."""

    slots: int
    threads: int
    gpus: float
    say: Callable[[str], None]

    def start(self, command: Command) -> RayProcess:
        """Queue a process."""
        return RayProcess(command, self)


class RayProcess:
    """A process on some node, started again elsewhere if its node dies."""

    def __init__(self, command: Command, pool: RayPool) -> None:
        self.command, self.pool = command, pool
        self.starts, self.is_asked_to_stop = 0, False
        self.code: int | None = None
        self.task = self._submit()

    def _submit(self) -> Any:
        import ray

        self.starts += 1
        task = ray.remote(
            num_cpus=self.pool.threads, num_gpus=self.pool.gpus, max_retries=0, name=f"antiphase {self.command.name}"
        )(ray_node.execute)
        words, folder, log = list(self.command.words), self.command.folder.absolute(), self.command.log.absolute()
        return task.remote(words, str(folder), str(log), os.getcwd())

    def poll(self) -> int | None:
        """As ``Running.poll``.

        Raises:
            BrokenRunError: its nodes died again and again, or the node could not start it.
        """
        import ray

        if self.code is None and ray.wait([self.task], timeout=0)[0]:
            self._settle()
        return self.code

    def _settle(self) -> None:
        """The task has ended: the exit code, or another start."""
        import ray

        try:
            code = int(ray.get(self.task))
        except ray.exceptions.TaskCancelledError:
            code = -signal.SIGTERM
        except ray.exceptions.RayTaskError as error:
            self.code = 1  # it has ended, so that stopping the others does not raise this again
            if self.is_asked_to_stop:  # another's error is on its way
                return
            raise BrokenRunError(
                f"the run {self.command.name} could not be started on its node: {error.cause}"
            ) from None
        except ray.exceptions.RayError as error:
            self._again(type(error).__name__)
            return
        if code in ENDED and not self.is_asked_to_stop:
            self._again("its process was asked to end")  # a node that is shut down tells its processes first
        else:
            self.code = code

    def _again(self, why: str) -> None:
        if self.is_asked_to_stop:
            self.code = -signal.SIGTERM
        elif self.starts > RESTARTS:
            self.code = 1
            raise BrokenRunError(f"the run {self.command.name} has lost its node {self.starts} times ({why})")
        else:
            self.pool.say(f"{self.command.name}: lost its node ({why}); it goes on elsewhere from its last checkpoint")
            self.task = self._submit()

    def stop(self) -> None:
        """Cancel the task: a waiting one is dropped, a running one ends its process."""
        import ray

        self.is_asked_to_stop = True
        if self.poll() is None:
            ray.cancel(self.task, force=False)

    def wait(self) -> int:
        """As ``Running.wait``."""
        import ray

        while (code := self.poll()) is None:
            ray.wait([self.task])
        return code


def connect(address: str | None) -> str:
    """Join the cluster as a driver, without usage statistics and without Ray's messages; its dashboard's address.

    Raises:
        InputError: there is no such cluster, this machine is none of its nodes, or it runs another version.
    """
    variables = os.environ  # noqa: TID251 – Ray's own variables, which it reads when it is imported
    variables["RAY_USAGE_STATS_ENABLED"] = "0"
    variables["RAY_DEDUP_LOGS_SKIP_REGEX"] = "^"  # print none of its lines among ours: what dies is told by ``_again``
    given = address or variables.get("RAY_ADDRESS") or "auto"
    if given != "auto":
        _check_answers(given)
    import ray

    if not ray.is_initialized():
        start = "start one with: ray start --head --disable-usage-stats"
        try:
            ray.init(address=given, log_to_driver=False, logging_level=logging.CRITICAL, ignore_reinit_error=True)
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:120]
            raise InputError(
                f"--ray-address {given}: cannot join a Ray cluster from this machine ({reason}); {start}, or --address "
                "on each further node"
            ) from None
    found: str = ray.get_runtime_context().worker.node.webui_url or "" if ray.is_initialized() else ""
    return found


def _check_answers(address: str) -> None:
    """Whether something listens there; Ray itself would wait for minutes, and end the process."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or "/" in host:
        remedy = "if it was not given, change RAY_ADDRESS"
        raise InputError(f"--ray-address must be HOST:PORT of the cluster's head, or auto, got {address!r}", remedy)
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"--ray-address {address}: no Ray cluster answers there ({error}); check ray status on its head"
        ) from None


def alive_nodes() -> list[dict[str, Any]]:
    """The nodes of the cluster that live, as ``ray.nodes`` describes them."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def probe(nodes: Iterable[dict[str, Any]], folder: Path, paths: Sequence[str]) -> None:
    """Have a task on every node read a file in ``folder`` and answer beside it.

    Raises:
        InputError: a node does not see the folder, the working folder or a path, cannot write, or has other versions.
    """
    token, home = uuid.uuid4().hex, os.getcwd()
    asked = folder.absolute() / f".probe-{token}.tmp"
    asked.write_text(token)
    answers: dict[str, Path] = {}
    try:
        tasks = {}
        for node in nodes:
            answers[node["NodeID"]] = asked.with_name(f".probe-{token}-{node['NodeID']}.tmp")
            seen = [home, *(str(Path(path).absolute()) for path in paths)]
            tasks[node["NodeID"]] = _on_node(node, ray_node.look).remote(str(asked), str(answers[node["NodeID"]]), seen)
        for node in nodes:
            _judge(node, _answer(node, tasks[node["NodeID"]], folder), answers[node["NodeID"]], token, folder)
    finally:
        for path in (asked, *answers.values()):
            path.unlink(missing_ok=True)


def _on_node(node: dict[str, Any], function: Callable[..., Any]) -> Any:
    """A task that runs on this node."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy = NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)
    return ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=strategy)(function)


def _answer(node: dict[str, Any], task: Any, folder: Path) -> ray_node.Sight | None:
    """What the node sees; None if it died meanwhile."""
    import ray

    host = node["NodeManagerHostname"]
    try:
        found: ray_node.Sight = ray.get(task, timeout=PROBE_SECONDS)
    except ray.exceptions.GetTimeoutError:
        raise InputError(
            f"--executor ray: node {host} did not answer in {PROBE_SECONDS:.0f} s; check ray status"
        ) from None
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, OSError):
            raise InputError(f"--output {folder}: node {host} cannot write there ({error.cause}); mend it") from None
        raise InputError(
            f"--executor ray: node {host} cannot run antiphase ({str(error.cause)[:80]}); install it there as here"
        ) from None
    except ray.exceptions.RayError:
        return None
    return found


def _judge(node: dict[str, Any], sight: ray_node.Sight | None, answer: Path, token: str, folder: Path) -> None:
    if sight is None:
        return
    host = f"{sight.host} ({node['NodeManagerAddress']})"
    found = None
    with suppress(FileNotFoundError):
        found = answer.read_text()
    if sight.token != token or found != token:
        raise InputError(
            f"--output {folder}: node {host} does not see this folder; choose one on storage that all nodes share"
        )
    if sight.missing:
        raise InputError(
            f"--executor ray: node {host} does not see {sight.missing[0]}; put it on storage that all nodes share"
        )
    here = ray_node.versions()
    if other := [f"{name} {sight.versions.get(name)}, here {here[name]}" for name in here
                 if sight.versions.get(name) != here[name]]:  # fmt: skip
        raise InputError(f"--executor ray: node {host} has {other[0]}; install equal versions on all nodes")


def _number(amount: float) -> str:
    return f"{amount:g}"
