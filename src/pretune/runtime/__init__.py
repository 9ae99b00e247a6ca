"""Provide services that every other package uses: errors, progress, files, devices, processes, random numbers, recipes.

Nothing here depends on text, networks, or training, and nothing here imports another package of pretune.
"""
