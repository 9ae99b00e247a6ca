"""Arrange tokenized texts into sequences and pack sequences into batches.

`sequences` fills templates with texts and collates packs, `batch_planning` decides which sequences share a pack,
`document_spans` cuts stored documents into sequences, `token_rows` holds tokenized rows in memory, and `sequence_parts`
joins several texts to one sequence.
"""
