"""Folders that commands work in: held by one process, never overwritten, gone on with only as the very same work."""
