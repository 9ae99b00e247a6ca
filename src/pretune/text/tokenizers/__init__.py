"""Tokenizers: training, every published file format, and the vocabularies behind them.

What is done with token ids belongs to `text.store` and `text.packing`.
"""
