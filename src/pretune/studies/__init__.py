"""Studies: compare recipes under one budget, with several seeds, and say what the results show.

    study file → arms (study_file) → plan with equal budgets (planning) → runs (execution) → comparisons → verdict → report

A study file is a YAML file with a question, arms, a budget, seeds, and evaluations; `builtin` holds those that come with pretune.
"""
