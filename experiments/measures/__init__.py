"""Measures: what an experiment measures, one folder each.

`definition.py` says what a measure consists of; docs/extending.md has an example.
"""
