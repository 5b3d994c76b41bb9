"""The settings of a run: their fields, presets and named arms."""
