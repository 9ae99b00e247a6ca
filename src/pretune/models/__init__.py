"""Models: a backbone with its heads and tokenizer, in memory and on disk.

Architectures are in `pretune.backbones` and `pretune.families`, training in `pretune.training`, predictions in
`pretune.inference`.
"""
