"""Fabric kind `multi-rail`: nodes with a NIC on each of several unlike rails."""
