"""Attention: the function `attend`, the layers around it, patterns (which keys a query may attend to) and score modifications.

Layers that are not attention belong to `nn`; CUDA kernels to `nn.kernels`.
"""
