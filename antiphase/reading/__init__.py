"""What comes from outside is read here: what can go wrong becomes one sentence with the file and the remedy."""
