"""Attention: the function `attend`, the modules around it, patterns (which keys a query sees) and score modifications.

Layers that are not attention belong to `nn`; CUDA kernels to `nn.kernels`.
"""
