"""What one model makes of text: log-likelihoods, losses, constrained answers, retrieval, where attention goes."""
