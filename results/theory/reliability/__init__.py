"""How often a fabric of tens of thousands of GPUs breaks, and what of their time that takes."""
