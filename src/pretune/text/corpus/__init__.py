"""Raw text: files, documents and sentences, and what is annotated, counted or found in them.

Labeled data belong to `text.examples`, token ids to `text.store`.
"""
