"""What their answers are worth."""
