"""Self-supervised and supervised objectives in which an encoder reads one text and a decoder writes another."""
