"""Measure of replacements: GPUs that fail for good under a running job, the spares that replace them, and the cost."""
