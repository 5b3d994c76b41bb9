"""Statistical uncertainty: intervals over samples and seeds, corrections for multiple comparisons, survival
analysis.
"""
