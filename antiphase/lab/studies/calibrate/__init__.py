"""Calibration of a pretrained model's heads, a folder for each command of ``antiphase calibrate``."""
