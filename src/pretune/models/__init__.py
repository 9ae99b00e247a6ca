"""Models on disk and in memory: a backbone with its heads and tokenizer, and the file layouts it is read from and written to.

Networks belong to `backbones` and `families`, training to `training`, and what a model is used for to `inference`.
"""
