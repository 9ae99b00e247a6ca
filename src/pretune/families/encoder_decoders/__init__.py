"""Encoder-decoder families: T5, BART, MarianMT and recurrent sequence-to-sequence models."""
