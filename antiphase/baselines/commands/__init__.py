"""Commands of their own that train and use the models that led here: a folder each."""
