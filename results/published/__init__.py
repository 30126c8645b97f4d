"""The papers' figures and tables, computed anew: one module each, all with the same outcome, a `Figure`."""
