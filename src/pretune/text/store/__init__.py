"""The token store: a tokenized corpus in memory-mapped shards, and the builder that writes it."""
