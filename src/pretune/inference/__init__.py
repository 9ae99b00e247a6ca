"""Inference with trained models: predict, fill masks, embed, find neighbors, ask, score likelihoods, and generate."""
