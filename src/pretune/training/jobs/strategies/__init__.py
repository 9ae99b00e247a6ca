"""The comparison of fine-tuning strategies for few labels: the search, and one module per kind of strategy."""
