"""Supervised tasks: classification, regression, tagging, question answering, ranking, generation."""
