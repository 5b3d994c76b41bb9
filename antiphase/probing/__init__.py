"""What attention does inside a model, read through its attention interface without touching its code."""
