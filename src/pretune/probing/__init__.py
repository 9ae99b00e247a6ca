"""Probing: what the representations of a model encode, layer by layer.

`probing_task` is the data that all probes read; `suites/` derives such tasks from files and treebanks; `probes/` fits classifiers and
their controls. The other modules compute representations, compare layers and models, and look at attention heads. Inference without
probes belongs to `inference`, scores of fine-tuned models to `evaluation`.
"""
