"""Services that every other package uses: errors, progress, files, devices, processes, random draws, recipes.

Nothing in here knows about text, networks or training, and nothing in here imports another package of pretune.
"""
