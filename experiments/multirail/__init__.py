"""Experiments on fabrics of kind multi-rail: allreduce over several rails, by policy, whole and with a NIC cut."""
