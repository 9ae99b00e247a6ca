"""Families of encoders: BERT and its descendants."""
