"""Using models: predict, fill, embed, generate."""
