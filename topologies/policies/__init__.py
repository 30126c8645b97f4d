"""Built-in forwarding policies, one module each. See topologies/forwarding.py."""
