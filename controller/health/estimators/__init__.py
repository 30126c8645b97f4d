"""Score estimators, one module each."""
