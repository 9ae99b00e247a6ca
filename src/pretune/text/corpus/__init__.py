"""Read raw text: files, documents, sentences, dialogues and word vectors; write tables.

Nothing in this package uses a tokenizer. Labeled examples belong to `text.examples`, token ids to `text.store`.
"""
