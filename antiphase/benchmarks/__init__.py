"""Speed compared with the alternatives that users have: correctness checks first, then paired runs, medians and
ratios.
"""
