"""Built-in fabric kinds, one module each. See topologies/fabric_kinds.py."""
