"""Training jobs: everything a training verb does from start to finish around the training loop."""
