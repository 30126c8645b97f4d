"""The command of a training script is understood as Python and torchrun would."""

from pathlib import Path

import pytest

from railyard.core.errors import BadInput, MissingRequirement
from railyard.workloads.recording import command_line
from railyard.workloads.recording.command_line import TrainingCommand, parse_command


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("")
    return str(path)


def test_python_with_a_script(script: str) -> None:
    command = parse_command(["python3", "-u", "-W", "ignore", script, "--lr", "1", "-m"])
    assert command == TrainingCommand("python3", script, False, ("--lr", "1", "-m"))
    assert command.name == "train.py"


def test_python_with_a_module() -> None:
    assert parse_command(["python", "-m", "train.main", "-x"]) == TrainingCommand("python", "train.main", True, ("-x",))


def test_torchrun_gives_the_number_of_ranks(script: str) -> None:
    words = ["torchrun", "--nnodes=1:4", "--nproc-per-node", "8", "--standalone", "--rdzv-backend", "c10d", script, "a"]
    assert parse_command(words) == TrainingCommand("python", script, False, ("a",), 32, 8)
    module = parse_command(["python", "-m", "torch.distributed.run", "--nproc_per_node=2", "-m", "train", "b"])
    assert module == TrainingCommand("python", "train", True, ("b",), 2, 2)


def test_a_torchrun_beside_a_python_takes_that_one(script: str) -> None:
    assert parse_command(["/venv/bin/torchrun", script]).python == "/venv/bin/python"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "COMMAND: '' is missing: write it after --, as in: record --ranks 8 -- python train.py"),
        (["bash", "x"], "COMMAND: 'bash' is no such command: allowed are python SCRIPT, python -m MODULE and torchrun"),
        (["python", "-c", "1"], "COMMAND: '-c' can't be recorded: give a file or a module"),
        (["python", "-u"], "COMMAND: '-u' names no script"),
        (["python", "no.py"], "COMMAND: 'no.py' is no file"),
        (["torchrun", "--nnodes", "2"], "COMMAND: 'torchrun' names no script"),
        (
            ["torchrun", "--nproc-per-node=gpu", "no.py"],
            "--nproc_per_node: 'gpu' must be a number: a recording has no GPUs to count",
        ),
    ],
)
def test_other_commands_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse_command(words)
    assert str(refused.value) == message


def test_a_python_that_is_not_there_is_refused() -> None:
    with pytest.raises(BadInput, match="COMMAND: '/no/python' is no program"):
        command_line.interpreter("/no/python")


def test_without_pytorch_the_installation_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_line, "_has_torch", lambda python: False)
    with pytest.raises(MissingRequirement, match=r"PyTorch is missing, which runs the script; .*\brecord\b"):
        command_line.interpreter("python3")
