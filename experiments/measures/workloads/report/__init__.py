"""Workloads in the report and on the terminal: sections, tables, figures."""
