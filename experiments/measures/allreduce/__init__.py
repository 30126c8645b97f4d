"""Measure of allreduces over several rails: times by size and policy, trainings, and faults of rails meanwhile."""
