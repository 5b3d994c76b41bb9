"""One folder for each measurement of a model: settings, measurement, typed result, tables, figures and words."""
