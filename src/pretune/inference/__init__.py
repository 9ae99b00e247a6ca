"""Inference with trained models: predict, fill masks, embed, search, find neighbors, ask, score likelihoods, and generate."""
