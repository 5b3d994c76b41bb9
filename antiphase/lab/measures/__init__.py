"""Measurements of models, one folder each: settings, measurement, typed result, tables, figures and text."""
