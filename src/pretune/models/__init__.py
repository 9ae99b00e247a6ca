"""Models: a backbone with its heads and tokenizer, in memory and on disk."""
