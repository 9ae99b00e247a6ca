"""Training: one loop, with a budget, for any backbone and any mixture of objectives."""
