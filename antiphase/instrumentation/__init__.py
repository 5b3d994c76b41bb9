"""Reading and changing what attention computes in any model that calls transformers' attention interface."""
