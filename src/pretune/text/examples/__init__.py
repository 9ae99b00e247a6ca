"""Read labeled data, with one module per kind of example.

`labeled` (classification, regression, pairs), `questions` (extractive question answering), `tagged` and `tag_schemes`
(sequence labeling), `multiple_choice`, `cloze_entities`, `span_pairs`, `text_to_text`, `parallel` (translations) and
`clozes` (prompts); with `splits`, `validation`, `few_shot` selection and `augmentation`.
"""
