"""Read labeled data, with one module per kind of example.

`labeled` (classification, regression, pairs), `question_answering` (extractive), `tagged` and `tag_schemes` (sequence
labeling), `multiple_choice`, `cloze_entities`, `span_pairs`, `text_to_text`, `parallel` (translations) and
`cloze_templates` (prompts); with `splits`, `validation`, `few_shot` sampling and `augmentation`.
"""
