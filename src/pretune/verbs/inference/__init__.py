"""Verbs that use models: predict, fill masks, embed, generate, translate, ask, and find neighbors."""
