"""Linear layers with int8 and int4 weights, and quantization-aware training."""
