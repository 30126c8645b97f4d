"""Measure `steering`: policies steer routes by health scores while workloads run."""
