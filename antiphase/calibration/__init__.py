"""Attention calibration: reducing attention sinks at inference, head by head (Yu et al., 2406.15765)."""

from antiphase.calibration.apply import calibrated as calibrated
from antiphase.calibration.plan import CalibrationPlan as CalibrationPlan
from antiphase.calibration.reference import calibrate_map as calibrate_map
from antiphase.calibration.search import search_calibration as search_calibration
