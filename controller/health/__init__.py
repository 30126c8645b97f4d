"""Health-score routing: scores of rails, HB domains and spines, where they are kept, and what follows from them.

Source: Outshift, "Training LLMs: An efficient GPU traffic routing mechanism within AI/ML cluster with rail-only
connections", parts 1 and 2 (2024); called "health routing" here.
"""
