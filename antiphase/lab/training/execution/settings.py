"""Flags that choose where jobs run."""

from __future__ import annotations

from dataclasses import dataclass

from antiphase.base.errors import InputError
from antiphase.lab.settings.flags import Settings, flag

EXECUTORS = ("local", "ray")


@dataclass(frozen=True, kw_only=True)
class ExecutorSettings(Settings):
    """Settings of a command that runs several jobs."""

    executor: str = flag(
        "Where the runs are made: local, or ray, a Ray cluster (extra cluster).",
        default="local",
        choices=EXECUTORS,
        places=True,
    )
    ray_address: str | None = flag(
        "HOST:PORT of the cluster's head; default: the cluster that this machine belongs to.", default=None, places=True
    )
    job_cpus: int | None = flag(
        "CPUs of each run, with --executor ray; default: 1.", default=None, least=1, places=True
    )
    job_gpus: float | None = flag(
        "GPUs of each run, with --executor ray: 0, 1 or a share of one; default: 0.",
        default=None,
        least=0,
        most=1,
        places=True,
    )

    def check(self) -> None:
        super().check()
        given = {"--ray-address": self.ray_address, "--job-cpus": self.job_cpus, "--job-gpus": self.job_gpus}
        if self.executor != "ray" and (named := next((name for name, one in given.items() if one is not None), None)):
            raise InputError(f"{named} is for a cluster; add --executor ray, or remove it")
