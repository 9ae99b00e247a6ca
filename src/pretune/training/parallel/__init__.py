"""Training in several processes: the process group, its rendezvous, consistency checks, sharded tensors."""
