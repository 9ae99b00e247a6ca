"""From tokenized texts to packs: sequences, their parts, and the plan that says which sequences share a pack."""
