"""Verbs that prepare data: tokenizers, token stores, phrases, user histories, tables of a suite, and word vectors."""
