"""A script for torchrun: trains several models one after another, because starting the processes takes longest."""

import json
import sys
from pathlib import Path

from antiphase.lab.settings.presets import load_preset
from antiphase.lab.studies.training_run import train_run


def main():
    """Runs as JSON: preset, output, overrides, and resume if a run goes on."""
    for preset, output, overrides, resume in json.loads(sys.argv[1]):
        train_run(load_preset(preset, overrides).run, Path(output), resume=resume)


if __name__ == "__main__":
    main()
