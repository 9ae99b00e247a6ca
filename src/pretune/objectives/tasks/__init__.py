"""Supervised tasks, one file each, and wrappers that change a task: a new name, other layers, adversarial training."""
