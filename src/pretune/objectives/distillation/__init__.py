"""Distillation: learning from the logits, tokens or hidden states of a teacher."""
