"""Text generation: greedy decoding, sampling, beam search, translation."""
