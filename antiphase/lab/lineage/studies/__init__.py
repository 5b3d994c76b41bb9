"""Studies that compare the earlier models on one question, one folder each."""
