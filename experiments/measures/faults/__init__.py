"""Measure of recovery: faults that are injected alone and failure scripts, and how soon traffic recovers from them."""
