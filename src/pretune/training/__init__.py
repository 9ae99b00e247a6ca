"""Training: one loop, under a budget, for any backbone and any mix of objectives."""
