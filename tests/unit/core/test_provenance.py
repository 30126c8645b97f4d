"""Provenance of a run: machine, libraries and commit."""

from pathlib import Path

import pytest

from railyard.core import provenance
from tests.unit.core.test_machine import FULL


def test_provenance_names_machine_and_versions() -> None:
    found = provenance.provenance(FULL, "netdev", "no module", 7)
    assert (found["kernel"], found["ovs"], found["datapath"]) == ("6.1.0-28-amd64", "3.1.0", "netdev")
    assert found["seed"] == 7
    assert found["libraries"].keys() == set(provenance.LIBRARIES)
    assert all(version[0].isdigit() for version in found["libraries"].values())


def test_provenance_outside_a_checkout_has_no_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(provenance, "PROJECT", tmp_path)
    found = provenance.provenance(FULL, "netdev", "", 1)
    assert (found["git_commit"], found["git_changed"]) == ("", False)
