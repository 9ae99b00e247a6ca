"""Smaller and faster models: pruned, quantized, distilled, and all of it together."""
