"""Output folders of commands: each is locked by one process, never overwritten, and resumed only by the same work."""
