"""Backbones: networks that turn packed token sequences into hidden states. They know nothing of losses or labels."""
