"""Measurements of one model; one file a measurement. ``scoring`` owns log-likelihood and teacher-forced predictions."""
