"""Distillation objectives: a student learns from the logits, tokens or hidden states of a teacher."""
