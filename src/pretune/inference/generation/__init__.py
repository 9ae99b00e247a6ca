"""Text generation: greedy decoding, sampling, beam search, and translation."""
