"""Verbs that use models: predict, fill masks, embed, search, generate, translate, ask, and find neighbors."""
