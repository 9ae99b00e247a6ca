"""Data-parallel training: the process group, rendezvous, consistency checks, and sharded tensors."""
