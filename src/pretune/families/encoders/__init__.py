"""Encoder families: BERT and its descendants."""
