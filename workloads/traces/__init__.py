"""Workloads of others: Chakra execution traces, PARAM comms traces, SimAI and ASTRA-sim workload text."""
