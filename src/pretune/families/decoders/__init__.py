"""Decoder families: causal language models."""
