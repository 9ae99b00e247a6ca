"""Input embeddings: token embeddings, positional encodings, character CNNs, and adaptive embeddings."""
