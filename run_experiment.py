#!/usr/bin/env python3
"""Run Railyard's command line: without arguments the quickstart; `--help` lists the commands.

Written for old Pythons too, so that one that can't run Railyard prints what to type instead.
"""

import codecs
import locale
import os
import shlex
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parent


def wrong_python(why: str) -> int:
    """Print what to type instead, and return exit status 3: the machine lacks something."""
    python, arguments = PROJECT / ".venv" / "bin" / "python", shlex.join(sys.argv[1:])
    sudo = "sudo " if os.geteuid() == 0 else ""
    instead = (
        f"{sudo}{python} {PROJECT / 'run_experiment.py'}" if python.exists() else f"sudo {PROJECT / 'script' / 'run'}"
    )
    print(f"error: {sys.executable} {why}; type: {instead} {arguments}".rstrip(), file=sys.stderr)
    return 3


def use_utf8() -> None:
    """Start again in Python's UTF-8 mode where the locale has another encoding; output keeps the locale's.

    All our files are UTF-8, and so are the arguments of programs that we start.
    """
    if sys.flags.utf8_mode or codecs.lookup(locale.getencoding()).name == "utf-8":
        return
    os.environ["PYTHONUTF8"] = "1"
    os.environ.setdefault("PYTHONIOENCODING", sys.stdout.encoding if sys.stdout else "utf-8")
    os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def main() -> int:
    if sys.version_info < (3, 11):  # noqa: UP036 (an older one gets a message)
        return wrong_python(f"is Python {sys.version_info[0]}.{sys.version_info[1]}, and 3.11 or later is needed")
    use_utf8()
    try:
        from railyard.experiments.cli import main as run
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "railyard":
            raise
        return wrong_python(f"lacks {error.name or error}")
    return run()


if __name__ == "__main__":
    sys.exit(main())
