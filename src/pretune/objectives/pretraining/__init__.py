"""Self-supervised objectives for a single stack: language modeling, masking, replaced token detection, sentence pairs."""
