"""The folder of the project: the working directory of its child processes, and where its commands are found."""

from pathlib import Path
from typing import Final

PROJECT: Final = Path(__file__).resolve().parent.parent
