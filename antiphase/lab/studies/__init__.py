"""Studies: several runs together, and what follows from them."""
