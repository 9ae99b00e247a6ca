"""Evaluation: suites of tasks, baselines, confidence intervals, calibration, language modeling, and reports.

Metrics of single tasks belong to `metrics`, the prediction of answers to `inference`.
"""
