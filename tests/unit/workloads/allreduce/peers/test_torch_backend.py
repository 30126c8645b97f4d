"""Railyard as a backend of torch.distributed, beside Gloo: three processes on loopback."""

import importlib.util
import pickle
import re
import subprocess
import sys
from typing import Any

import pytest

from railyard.core.installation import PROJECT

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="PyTorch isn't installed: script/bootstrap gloo"
)
PROGRAM_S = 100


@pytest.fixture(scope="module")
def ranks() -> Any:
    """Return what each rank saw: `torch_ranks.Seen` as a dict."""
    program = [sys.executable, "-m", "tests.unit.workloads.allreduce.peers.torch_ranks"]
    done = subprocess.run(program, cwd=PROJECT, stdout=subprocess.PIPE, check=True, timeout=PROGRAM_S)
    return pickle.loads(done.stdout)


def test_every_collective_gives_gloos_results(ranks: Any) -> None:
    for seen in ranks:
        assert len(seen["results"]["gloo"]) == 14
        for name, result in seen["results"]["gloo"].items():
            assert seen["results"]["railyard"][name] == result, name


def test_sum_uses_the_tensors_own_memory(ranks: Any) -> None:
    assert all(seen["in_place"] for seen in ranks)


def test_an_unmodified_script_trains_to_the_same_weights(ranks: Any) -> None:
    for seen in ranks:
        ours, gloo = seen["trained"]["railyard"], seen["trained"]["gloo"]
        assert ours["losses"][:30] == pytest.approx(gloo["losses"][:30], rel=1e-3, abs=1e-5)
        # sums in another order differ in their last bit, and each step multiplies that: on one processor by 2e-3 in all
        assert ours["losses"] == pytest.approx(gloo["losses"], rel=2e-2, abs=1e-4)
        assert ours["weights"] == pytest.approx(gloo["weights"], rel=2e-2, abs=1e-2)
        assert ours["weights"] == ranks[0]["trained"]["railyard"]["weights"]  # bit for bit on all ranks
    means = [sum(seen["trained"]["railyard"]["losses"][step] for seen in ranks) / len(ranks) for step in range(60)]
    assert sum(means[-10:]) < 0.5 * sum(means[:10]), means


def test_impossible_calls_raise_at_once(ranks: Any) -> None:
    fields = {"bool": "dtype", "strides": "tensor", "max": "op", "lengths": "output", "second": "group"}
    for seen in ranks:
        for case, field in fields.items():
            assert seen["refused"][case].startswith(f"BadInput: {field}: ")


def test_group_of_some_nodes_is_refused(ranks: Any) -> None:
    assert "BadInput: world_size: 2 must be 3" in ranks[0]["refused"]["some"]
    assert ranks[2]["refused"]["some"] == ""


def test_unlike_sizes_are_an_error_on_all_ranks(ranks: Any) -> None:
    (message,) = {seen["refused"]["unlike"] for seen in ranks}
    assert re.match(r"GroupBroken: operation \d+ .*: rank \d: allreduce of \d float32; rank \d: ", message)
    assert all(seen["refused"]["after"] for seen in ranks), "training on a broken group fails"


def test_abort_is_immediate_and_fails_all_ranks(ranks: Any) -> None:
    assert ranks[1]["abort_s"] < 10
    assert len(ranks[1]["aborted"]) == 2
    for seen in ranks:
        assert all(message.startswith("GroupBroken: ") for message in seen["aborted"])
    # as rank 0 finds it, or rail by rail, if rank 2 finds it first and tells rank 0
    assert all("rank 1" in ranks[rank]["aborted"][0] for rank in (0, 2))
