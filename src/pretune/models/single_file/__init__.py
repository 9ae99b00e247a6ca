"""Export of a model as one readable Python file that needs only torch and tokenizers, generated from pretune's own source."""
