"""Attention: the function `attend`, layers around it, attention patterns and score modifications."""
