"""Allreduce over several unlike rails at once, after Nezha: who gets which share, and what happens when a rail dies."""
