"""Self-supervised objectives for an encoder or a decoder: language modeling, masking, replaced tokens, text pairs."""
