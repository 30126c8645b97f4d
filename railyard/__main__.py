"""The program `railyard`, and `python -m railyard`: start the command line, or print what to type where it can't start.

Imports nothing that may be missing.
"""

import codecs
import gc
import locale
import os
import sys


def main(remedy: str = "") -> int:
    """Run the command line and return its exit status. `remedy`: what to type if this Python lacks a package."""
    use_utf8()
    gc.set_threshold(50_000, 20, 50)  # searching what is imported for cycles took a tenth of a run's CPU time
    try:
        from railyard.core import crash

        crash.end_at_ctrl_c()
        from railyard.experiments.cli import main as run
    except (ImportError, PermissionError) as error:
        if path := unreadable():
            print(f"error: {path} can't be read by this user; type: sudo chmod -R a+rX {path}", file=sys.stderr)
            return 3
        if not isinstance(error, ImportError) or (error.name or "").partition(".")[0] == "railyard":
            raise
        remedy = remedy or install_remedy()
        print(f"error: {sys.executable} lacks {error.name or error}; type: {remedy}", file=sys.stderr)
        return 3
    return run()


def install_remedy() -> str:
    """Return what to type to install what the package depends on: from the checkout, or from the wheel."""
    from railyard.core.installation import INSTALL, IS_CHECKOUT, PROJECT, pip_install

    return f"cd {PROJECT} && {INSTALL}" if IS_CHECKOUT else pip_install()


def unreadable() -> str:
    """Return the first file or folder of the package that this user can't read: pip installs with the umask of root."""
    package = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 (pathlib takes a while to import)
    for folder, folders, files in os.walk(package, followlinks=True):
        for name in sorted([*folders, *files]):
            path = os.path.join(folder, name)  # noqa: PTH118
            if not os.access(path, os.R_OK | (os.X_OK if name in folders else 0)):
                return path
    return ""


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
