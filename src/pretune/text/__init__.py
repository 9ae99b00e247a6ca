"""Turn files into batches of token ids (packs). The packages import one way only: corpus → tokenizers → store → packing → examples.

corpus      raw text: files, documents, sentences, dialogues, word vectors; no tokenizer
tokenizers  text to token ids and back: training, file formats, special tokens and their templates, word starts, phrases
store       a tokenized corpus on disk: building it, reading it, mining phrases in it
packing     token ids to packs: sequences, templates filled with texts, plans of which sequences share a pack
examples    labeled data, one module per kind of task, and parallel texts

A type that two packages need belongs to the one that comes first. `spans` holds index arithmetic for all of them.
"""
