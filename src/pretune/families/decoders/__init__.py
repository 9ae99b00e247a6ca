"""Families of decoders: language models that read from left to right."""
