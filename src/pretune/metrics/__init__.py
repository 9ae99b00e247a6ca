"""Metrics, one file a kind."""
