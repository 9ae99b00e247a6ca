"""Families of encoder-decoders: T5, BART, MarianMT and recurrent sequence-to-sequence models."""
