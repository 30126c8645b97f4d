"""How long a training iteration takes on a real cluster: FLOPs, efficiency, memory, Rail-only Eq. 6-11, the search."""
