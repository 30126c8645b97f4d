"""Replays a schedule on a fabric: real TCP, few processes, every byte verified."""
