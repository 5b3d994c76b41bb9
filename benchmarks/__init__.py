"""What is timed against what, beside ``antiphase benchmark``; each is run as ``python -m benchmarks.NAME``."""
