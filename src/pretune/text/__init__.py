"""From files to packs: files, documents, sentences, tokenizers, the token store, plans."""
