"""Train, load, save and inspect tokenizers, in every published file format.

This package maps text to token ids and back, and derives word starts, phrases, shared tokens and the template of special
tokens from the vocabulary. Code that processes token ids belongs to `text.store` and `text.packing`.
"""
