"""Train, load, save and inspect tokenizers, in every published file format.

Everything that maps text to token ids and back lives here, with what is read off the vocabulary: word starts, phrases,
shared tokens, and the template of special tokens around texts. What is done with token ids belongs to `text.store` and
`text.packing`.
"""
