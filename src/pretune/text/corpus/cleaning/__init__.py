"""Clean a corpus before it is tokenized: rules for lines and documents, languages, benchmark texts, and duplicates.

c4_rules, quality_rules, repetition_rules   published rules; rule_sets names them for `pretune prepare --clean`
language_identification                     which documents are in a language to keep
decontamination                             which paragraphs contain text of a benchmark
cleaner                                     what is left of one document after all of these
near_duplicates, duplicate_spans            which documents and sentences repeat earlier ones, in the whole corpus
report                                      what each rule removed

Cleaning depends on the text alone: it does not depend on the number of processes, and needs no tokenizer.
"""
