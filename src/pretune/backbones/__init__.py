"""Backbones, assembled from bricks: packed token streams in, states out. They know no loss and no label."""
