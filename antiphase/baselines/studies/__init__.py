"""Studies that compare the models that led here on one question: a folder each."""
