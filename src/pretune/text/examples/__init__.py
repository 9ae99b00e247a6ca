"""Labeled data, one module per kind: rows, pairs, questions, tagged words, choices; with splits, checks and few-shot selection."""
