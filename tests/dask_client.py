"""Connect to a Dask scheduler as `sweep --on` does, and print its machines, or the error's line and exit status.

python -m tests.dask_client ADDRESS [KEY FILE]
"""

import sys
from pathlib import Path

from railyard.core.errors import RailyardError, print_error
from railyard.experiments.sweep import keys
from railyard.experiments.sweep.cluster import Cluster


def main() -> int:
    """Return the exit status that a sweep would have."""
    address, *files = sys.argv[1:]
    try:
        cluster = Cluster(address, keys.load(Path(files[0])) if files else None)
    except RailyardError as error:
        return print_error(str(error), error.exit_status)
    print("machines:", len(cluster.names()), "workers:", len(cluster.worker_names()), "ends:", cluster.stop())
    cluster.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
