"""Model compression: distillation, pruning, quantization, and a search over their combinations."""
