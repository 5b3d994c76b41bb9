"""Statistical uncertainty: intervals over samples and seeds, multiple comparisons, survival analysis."""
