"""Self-supervised objectives of a single stack: language modeling, masking, replaced tokens, sentence pairs."""
