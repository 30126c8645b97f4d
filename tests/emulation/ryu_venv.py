"""A venv with Ryu 4.34, made once and kept in the checkout's .cache; some seconds, and a package index is needed.

Ryu's last release asks for the setuptools of its time (below 58, so no build isolation), and for a name that eventlet
has dropped since: a line in the venv's ryu.pth puts that back whenever its Python starts.
"""

import fcntl
import subprocess
import sys
from pathlib import Path
from typing import Final

VENV: Final = Path(__file__).resolve().parents[2] / ".cache" / "ryu-venv"
DONE: Final = VENV / "complete"
EVENTLET: Final = (
    "import eventlet.wsgi; eventlet.wsgi.ALREADY_HANDLED = getattr(eventlet.wsgi, 'ALREADY_HANDLED', None)\n"
)
INSTALL_S: Final = 240


class CannotMake(Exception):
    """The venv can't be made here; the message says why."""


def ryu_manager() -> Path:
    """The venv's `ryu-manager`, made now if it isn't there, or awaited if another process makes it."""
    try:
        if not DONE.exists():
            VENV.parent.mkdir(exist_ok=True)
            with VENV.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not DONE.exists():
                    _make()
    except (OSError, subprocess.SubprocessError) as error:
        raise CannotMake(f"no venv with Ryu 4.34 can be made here: {error}") from error
    return VENV / "bin" / "ryu-manager"


def _make() -> None:
    _run(sys.executable, "-m", "venv", "--clear", "--without-pip", str(VENV))
    pip = [sys.executable, "-m", "pip", "--python", str(VENV), "install", "--quiet"]
    _run(*pip, "setuptools<58", "wheel")
    _run(*pip, "--no-build-isolation", "ryu==4.34")
    (site,) = VENV.glob("lib/python*/site-packages")
    (site / "ryu.pth").write_text(EVENTLET)
    (site / "railyard.pth").write_text(f"{VENV.parents[1]}\n")
    DONE.touch()


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=INSTALL_S, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(argv[1:])}: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
