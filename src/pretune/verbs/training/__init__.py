"""Verbs that train models: pretrain, adapt, fine-tune, tune, and ULMFiT."""
