"""Building blocks of networks: attention, embeddings, feed-forward and recurrent layers, norms, pooling, and output heads."""
