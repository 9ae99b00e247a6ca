"""Probes: classifiers on the vectors of one layer or a mix of layers, control tasks, and the analysis of scores."""
