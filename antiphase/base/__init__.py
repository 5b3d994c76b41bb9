"""What every part stands on: errors, records, typed settings, files, folders of results, randomness."""
