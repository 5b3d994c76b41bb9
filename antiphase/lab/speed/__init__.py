"""Speed compared with the alternatives that users have: correctness checks, then paired runs, medians and ratios."""
