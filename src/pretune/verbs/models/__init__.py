"""Verbs that convert models: import from and export to the formats of other libraries."""
