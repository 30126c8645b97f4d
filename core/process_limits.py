"""Limits of a process, which a process that holds the sockets of many GPUs must raise."""

import resource


def raise_open_file_limit() -> None:
    """As many open files as this process may ask for. Its first limit is 1,024 on most machines, for the sake of
    programs that use select(); 64 GPUs that send to each other need 4,032 sockets in each of two workers.
    """
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
