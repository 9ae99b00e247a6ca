"""Verbs that prepare data: tokenizers, token stores, phrases, user histories, and word vectors."""
