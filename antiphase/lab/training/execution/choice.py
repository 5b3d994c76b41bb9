"""The executor that settings ask for."""

from __future__ import annotations

from antiphase.lab.training.execution.executor import Executor
from antiphase.lab.training.execution.local import LOCAL
from antiphase.lab.training.execution.ray_cluster import RayExecutor
from antiphase.lab.training.execution.settings import ExecutorSettings


def executor_of(settings: ExecutorSettings) -> Executor:
    """
    Raises:
        InputError: Ray is not installed.
    """
    if settings.executor == "local":
        return LOCAL
    return RayExecutor(settings.ray_address, cpus=settings.job_cpus or 1, gpus=settings.job_gpus or 0)
