"""Kinds of rails: one module each."""
