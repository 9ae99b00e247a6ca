"""Verbs that use models: predict, fill masks, embed, search, generate, translate, ask, recommend, and find neighbors."""
