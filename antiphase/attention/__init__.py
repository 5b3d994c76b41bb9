"""What attention does in any model: its calls observed or replaced, complete maps, selected rows and statistics."""
