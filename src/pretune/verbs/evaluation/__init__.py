"""Verbs that measure models, data, and devices: suites, perplexity, probes, attention, similarity, contamination, speed."""
