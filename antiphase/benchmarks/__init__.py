"""Speed beside what a user would pick instead: correctness first, then paired runs, medians and ratios."""
