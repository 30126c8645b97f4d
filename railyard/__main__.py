"""The program `railyard`, and `python -m railyard`: start the command line, or print what to type where it can't start.

Imports nothing that may be missing.
"""

import codecs
import locale
import os
import sys


def main(remedy: str = "") -> int:
    """Run the command line and return its exit status. `remedy`: what to type if this Python lacks a package."""
    use_utf8()
    try:
        from railyard.experiments.cli import main as run
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "railyard":
            raise
        remedy = remedy or f"{sys.executable} -m pip install railyard"
        print(f"error: {sys.executable} lacks {error.name or error}; type: {remedy}", file=sys.stderr)
        return 3
    return run()


def use_utf8() -> None:
    """Start again in Python's UTF-8 mode where the locale has another encoding; output keeps the locale's.

    All our files are UTF-8, and so are the arguments of programs that we start.
    """
    if sys.flags.utf8_mode or codecs.lookup(locale.getencoding()).name == "utf-8":
        return
    os.environ["PYTHONUTF8"] = "1"
    os.environ.setdefault("PYTHONIOENCODING", sys.stdout.encoding if sys.stdout else "utf-8")
    os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
