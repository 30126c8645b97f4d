"""What multi-rail experiments measured, beside what Nezha says: tables, bars, figures."""
