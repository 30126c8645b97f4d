"""Shell completion of commands, options and names, by the scripts that `--show-completion` prints."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = f"""#!{sys.executable}
import sys
from railyard.__main__ import main
sys.exit(main())
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH with the program `railyard`, as pip would install it."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "railyard").write_text(PROGRAM)
    (folder / "railyard").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def run(path: str, *command: str, **variables: str) -> str:
    environment = {**os.environ, "PATH": path, **variables}
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    ("line", "completions"),
    [
        ("railyard des", {"describe"}),
        ("railyard run mo", {"moe-full-step", "moe-iteration", "moe-slowdown", "moving-hotspot"}),
        ("railyard describe quick", {"quickstart"}),
        ("railyard predict tab", {"table2"}),
        ("railyard claims log-k spine-free-k", {"spine-free-k256-146b"}),
        ("railyard lint gpt-1t", {"gpt-1t"}),
        ("railyard search gpt-1t --plat", {"--platform"}),
        ("railyard search gpt-1t --platform h", {"h100", "h200", "h800"}),
        ("railyard exec no-such-run d0", set()),
    ],
)
def test_bash_completes(path: str, line: str, completions: set[str]) -> None:
    words = line.split()
    script = """eval "$(_RAILYARD_COMPLETE=source_bash railyard)"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
    _railyard_completion railyard; printf '%s\\n' "${COMPREPLY[@]}" """
    assert set(run(path, "bash", "-c", script, "bash", *words).split()) == completions


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_names_with_their_help(path: str, shell: str) -> None:
    variables = {"_TYPER_COMPLETE_ARGS": "railyard des", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    printed = run(path, "railyard", _RAILYARD_COMPLETE=f"complete_{shell}", **variables)
    assert "describe" in printed
    assert "Print what an" in printed


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_for_railyard(path: str, shell: str, tmp_path: Path) -> None:
    script = run(path, "railyard", _RAILYARD_COMPLETE=f"source_{shell}")
    assert f"_RAILYARD_COMPLETE=complete_{shell}" in script
    if program := shutil.which(shell):
        (tmp_path / "script").write_text(script)
        run(path, program, "-n", str(tmp_path / "script"))
