"""Measure of fail-slow: a GPU or a link gets slow under a running job, and a detector names it."""
