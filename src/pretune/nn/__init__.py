"""Bricks: attention, patterns, scores, positions, embeddings, feed-forward, norms, heads, recurrent cells."""
