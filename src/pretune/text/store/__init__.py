"""Build and read token stores: tokenized corpora on disk, as memory-mapped shards; and mine phrases in them."""
