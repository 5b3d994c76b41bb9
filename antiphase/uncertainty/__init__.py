"""How sure a number is: intervals over samples and seeds, corrections for many comparisons, times to an event."""
