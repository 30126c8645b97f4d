"""Run torchft's lighthouse, which decides which replica groups take part in a step, until it is killed."""

import argparse
import signal

from torchft.coordination import LighthouseServer


def main() -> None:
    """Listen on `--port`. A step needs `--min-groups`; those that are late are waited for, 10 s at most."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=29510)
    parser.add_argument("--min-groups", type=int, required=True)
    options = parser.parse_args()
    server = LighthouseServer(f"[::]:{options.port}", options.min_groups, join_timeout_ms=10_000)
    print("lighthouse at", server.address(), flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
