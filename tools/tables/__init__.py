"""Tables of the pages, from records: ``python -m tools.tables.pages`` writes them."""
