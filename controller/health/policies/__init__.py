"""Health-routing policies, one module each."""
