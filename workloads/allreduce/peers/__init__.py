"""Other engines in the same fabric: Gloo, MPI, and the kernel's MPTCP; and training over Gloo and over Railyard."""
