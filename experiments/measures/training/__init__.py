"""Measure of trainings: real programs at the GPUs of a fabric, a fault meanwhile, and what the training lost."""
