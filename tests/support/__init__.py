"""What several tests share: texts, tiny models, comparisons with `transformers`, and scripts that run in other processes."""
