"""Verbs that make models smaller and faster: distill, prune, quantize, and compress."""
