"""Code that several test modules share: texts, tiny models, comparisons with `transformers`, the command line, other processes."""
