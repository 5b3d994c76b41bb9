"""Settings that the commands that train share: a preset, text for it, and what changes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from antiphase.base.errors import InputError, named
from antiphase.lab.settings.flags import Settings, flag
from antiphase.lab.settings.presets import Preset, check_followed, load_preset
from antiphase.lab.training.execution.settings import ExecutorSettings

BY_FLAG = {
    "data.paths": "data", "data.source": "data", "data.validation": "validation", "training.device": "device",
    "training.seed": "seed", "compare.seeds": "seeds",
}  # fmt: skip
"""Settings of a preset that flags of their own change, by key: their fields."""


def preset_flag(default: str = "demo") -> Any:
    """The field that names a preset."""
    return flag("Name of a shipped preset, or a YAML file.", default=default)


@dataclass(frozen=True, kw_only=True)
class ChangeSettings(Settings):
    """Settings of a command that trains, with the flags that change those of training."""

    settings: Sequence[str] = flag(
        "Override a setting of the preset: KEY=VALUE, e.g. training.steps=200. Repeatable.", name="--set", default=()
    )
    device: str | None = flag("Device: auto, cpu, cuda or cuda:0.", default=None)

    def check(self) -> None:
        super().check()
        keys = [override.partition("=")[0] for override in self.settings]
        for key, field in BY_FLAG.items():
            if key in keys and getattr(self, field, None) not in (None, (), []):
                raise InputError(f"--set {key} and {named(field)} say the same; give one of them")

    def overrides(self) -> list[str]:
        """All flags that change a preset, as KEY=VALUE."""
        return [*self.settings, *([] if self.device is None else [f"training.device={self.device}"])]


@dataclass(frozen=True, kw_only=True)
class SeedsSettings(ExecutorSettings, ChangeSettings):
    """Settings of a command that trains every arm with every seed, here or on a cluster."""

    seeds: Sequence[int] = flag(
        "Random seeds, comma-separated, e.g. 0,1,2.", default=(), separated=True, allows_duplicates=True
    )

    def overrides(self) -> list[str]:
        return [*super().overrides(), *([f"compare.seeds={list(self.seeds)}"] if self.seeds else [])]


@dataclass(frozen=True, kw_only=True)
class StudyTextSettings(ChangeSettings):
    """Settings of a command that can be given text."""

    data: Sequence[str] = flag("File, folder or Hub dataset with text. Repeatable.", default=())
    validation: Sequence[str] = flag("Held-out text, as for --data. Repeatable.", default=())


@dataclass(frozen=True, kw_only=True)
class PresetSettings(StudyTextSettings):
    """Settings of a command that trains what a preset says."""

    preset: str = preset_flag()

    def chosen_preset(self, first: Sequence[str] = ()) -> Preset:
        """The preset with all flags that change it, after the overrides ``first``.

        Raises:
            InputError: no such preset, or settings that cannot be used.
        """
        self.check()
        return load_preset(self.preset, [*first, *self.overrides()], data=self.data, validation=self.validation)


@dataclass(frozen=True, kw_only=True)
class StudySettings(SeedsSettings, PresetSettings):
    """Settings of a study of a preset, with every arm and seed."""

    def chosen_preset(self, first: Sequence[str] = ()) -> Preset:
        found = super().chosen_preset(first)
        check_followed(found, self.settings)
        return found
