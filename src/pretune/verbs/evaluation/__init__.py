"""Verbs that measure: benchmark suites, comparisons, contamination, and the speed of a device."""
