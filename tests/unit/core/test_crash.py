"""The outermost handler: any exception is one line, a status, and for defects a report; any text can be printed."""

import errno
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.core import crash
from railyard.core.errors import MAX_LINE, BadInput, one_line
from tests.emulation.programs import ROOT


def guarded(body: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run code as a program's main function, in a process whose temporary folder is `folder`."""
    code = (
        f"import os, sys\nfrom railyard.core import crash\ndef main():\n{textwrap.indent(body, '    ')}\n    return 0\n"
    )
    argv = [sys.executable, "-c", f"{code}\nsys.exit(crash.guarded(main))"]
    environment = {**os.environ, "TMPDIR": str(folder), "SECRET": "hunter2"}
    return subprocess.run(argv, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)


def test_a_defect_is_one_line_with_a_report(tmp_path: Path) -> None:
    done = guarded("print('begun')\nraise KeyError('nowhere\\nat all')", tmp_path)
    (report,) = tmp_path.iterdir()
    assert (done.returncode, done.stdout) == (70, "begun\n")
    assert done.stderr.startswith("error: KeyError: 'nowhere\\nat all' (")
    assert done.stderr.endswith(f" {report})\n")
    text = report.read_text()
    assert "Traceback" in text
    assert "command: -c" in text
    assert "hunter2" not in text
    assert report.stat().st_mode & 0o077 == 0


def test_a_report_imports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy(ModuleType):
        def __getattribute__(self, name: str) -> object:
            raise ValueError(f"{name} can't be imported")

    monkeypatch.setitem(sys.modules, "lazy", Lazy("lazy"))
    assert "ZeroDivisionError" in crash.crash_text(ZeroDivisionError())


def test_a_defect_without_a_temporary_folder_is_one_line() -> None:
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); raise KeyError(1)"
    done = guarded(full, Path("/dev/shm"))
    assert done.returncode == 70
    assert done.stderr.count("\n") == 1
    assert "set TMPDIR" in done.stderr


BODIES = {
    "Ctrl-C": "raise KeyboardInterrupt",
    "exit": "raise SystemExit(5)",
    "generator exit": "raise GeneratorExit",
    "memory": "raise MemoryError",
    "full disk": "raise OSError(28, 'No space left', '/x')",
    "open files": "raise OSError(24, 'x')",
    "threads": 'import threading\nraise RuntimeError("can\'t start new thread")',
    "bad input": "from railyard.core.errors import BadInput\nraise BadInput('a', 1, 'must be 2')",
    "blocking": "import socket\na, b = socket.socketpair()\na.recv(1, socket.MSG_DONTWAIT)",
    "plugin": "from railyard.core import plugins\nplugins.load(sys.path[0] + '/x.py')\n"
    "(m,) = [m for n, m in sys.modules.items() if n.startswith('railyard_plugin_')]\nm.f()",
}


def test_each_error_has_its_status_and_one_line(tmp_path: Path, data_regression: DataRegressionFixture) -> None:
    plugin = tmp_path / "x.py"
    plugin.write_text("def f():\n    return {}['a']\n")
    outcomes: dict[str, str] = {}
    for case, body in BODIES.items():
        done = guarded(body.replace("sys.path[0]", repr(str(tmp_path))), tmp_path)
        line = re.sub(r"\S+(crash|report)\S*\)$", "REPORT)", done.stderr.strip().replace(str(plugin), "PLUGIN"))
        outcomes[case] = f"{done.returncode} {line}"
    assert all(outcome.count("\n") == 0 for outcome in outcomes.values())
    data_regression.check(outcomes)


def test_an_error_of_the_system_has_its_number() -> None:
    assert crash.from_system(OSError(errno.ENOENT, "No such file")) is None
    assert crash.from_system(BadInput("a", 1, "b")) is None
    assert "read-only (/a)" in str(crash.from_system(OSError(errno.EROFS, "x", b"/a")))


@given(st.text(st.characters()), st.sampled_from(["ascii", "latin-1", "utf-8", "cp437", "euc-jp"]))
def test_any_text_can_be_written_in_any_encoding(text: str, encoding: str) -> None:
    written = text.encode(encoding, "railyard")
    assert len(written.decode(encoding)) >= len(text.encode(encoding, "ignore").decode(encoding))


def test_marks_have_readable_ascii_forms() -> None:
    assert "✓ 3 × 2 → é ≥ 日".encode("ascii", "railyard") == b"v 3 x 2 -> e >= ?"


def test_long_line_is_shortened_between_words() -> None:
    words = [f"word{number}" for number in range(100)]
    line = one_line(" ".join(words))
    assert len(line) <= MAX_LINE
    assert set(line.split()) <= {*words, "..."}
    assert len(one_line("x" * 1000)) <= MAX_LINE
