"""Using models: predict, fill, embed."""
