"""Measure `workloads`: traffic of training jobs, replayed and set beside its prediction."""
