"""Damaged run folders: every damage is named, no summary of them passes, and nothing ends in a traceback."""

import hashlib
import io
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pytest_regressions.data_regression import DataRegressionFixture
from rich.console import Console

from railyard.core.errors import BadInput
from railyard.core.safe_files import Folder
from railyard.experiments.measures.faults.records import CONNECTIVITY_CHECKS
from railyard.experiments.measures.replacement.records import REPLACEMENTS
from railyard.results import run_folder
from railyard.results.runs import manifest
from railyard.results.runs.record_files import from_parquet, to_json
from railyard.results.runs.records import Run
from railyard.results.views import report
from tests.unit.experiments.measures.allreduce.sample_results import run_of, sample
from tests.unit.messages import messages
from tests.unit.sample_runs import recovery_run, sample_run

NOT_READ = {"results.csv", "traces/0.json", "manifest.json"}  # of a folder without a manifest
Damage = Callable[[Path], object]
DRAWN = {"summary.json", "report.html", "timeline.pftrace"}
GRID = ("spec.yaml", "provenance.json", "results.csv", "results.parquet", "flows.parquet", "recovery.csv",
        "events.jsonl", "run.json", "connectivity.csv", "replacement.csv", "traces/0.json",
        "manifest.json")  # fmt: skip


def _grid() -> Run:
    run, beside = sample_run(2, 2, 1), recovery_run()
    run.records[CONNECTIVITY_CHECKS.name] = beside.rows(CONNECTIVITY_CHECKS)
    run.rows(REPLACEMENTS).extend(beside.rows(REPLACEMENTS))
    run.files["traces/0.json"] = b'{"nodes": []}'
    return run


RUNS: Mapping[str, Callable[[], Run]] = {"grid": _grid, "multi-rail": lambda: run_of(sample())}


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes a second, and test_results_report does it."""
    monkeypatch.setattr(report, "render", lambda analysis: f"<title>{analysis.run.name}</title>")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    folders = {name: tmp_path_factory.mktemp(name) for name in RUNS}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(report, "render", lambda _: "")
        for name, folder in folders.items():
            run_folder.save(RUNS[name](), folder)
    return folders


def _truncate(eighths: int, path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * eighths // 8])


def _flip(eighths: int, path: Path) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[len(data) * eighths // 8] ^= 0x55
    path.write_bytes(data)


def _half_the_rows(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: len(lines) // 2]))


def _swap_columns(path: Path) -> None:
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([b",".join(reversed(lines[0].split(b","))), *lines[1:]]))


def _replace(old: bytes, new: bytes, path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data.replace(old, new) if old in data else data + new)


def _huge(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(3_000_000_000)


def _link(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: Mapping[str, Damage] = {
    **{f"truncated to {n}/8": partial(_truncate, n) for n in (0, 3, 7)},
    **{f"flipped at {n}/8": partial(_flip, n) for n in (0, 3, 6, 7)},
    "deleted": Path.unlink,
    "half the rows": _half_the_rows,
    "columns swapped": _swap_columns,
    "wrong types": partial(_replace, b"1", b'"x"'),
    "values removed": partial(_replace, b"0", b""),
    "NaN": partial(_replace, b"1", b"NaN"),
    "more": lambda path: path.write_bytes(path.read_bytes() + b"\n1,2,3\n"),
    "no text": lambda path: path.write_bytes(b"\xff\xfe\0"),
    "another value": lambda path: path.write_bytes(b"[1]"),
    "deep": lambda path: path.write_bytes(b"[" * 100_000),
    "huge": _huge,
    "a link": _link,
    "a folder": _folder,
}
DRAWN_WITHOUT_MANIFEST = {"half the rows", "columns swapped", "wrong types", "values removed", "NaN", "flipped at 6/8"}
"""Damages that are often not found on reading."""
AGAINST_MANIFEST = ("truncated to 7/8", "flipped at 3/8", "deleted", "more", "huge", "a link", "a folder")
"""Damages of size, content and type of a file, which is all that is compared with the manifest."""


def _damaged(original: Path, folder: Path, name: str, damages: Iterable[str]) -> Iterator[str]:
    """Yield the name of each damage, done to a file of a copy of the folder. A test changes no other record."""
    shutil.copytree(original, folder)
    path = folder / name
    content = path.read_bytes()
    for damage in damages:
        DAMAGES[damage](path)
        if not path.is_file() or path.is_symlink() or damage == "huge" or path.read_bytes() != content:
            yield damage
        if path.is_dir():
            path.rmdir()
        path.unlink(missing_ok=True)
        path.with_suffix(".moved").unlink(missing_ok=True)
        path.write_bytes(content)


def _redraw(folder: Path) -> Run | str:
    """The run, or why it can't be drawn."""
    try:
        with Folder(folder) as opened:
            run = run_folder.load(opened)
            run_folder.redraw(run, opened, Console(file=io.StringIO()))
            return run
    except BadInput as error:
        return str(error)


def _damage_found(folder: Path) -> list[str]:
    run = _redraw(folder)
    assert isinstance(run, Run)
    return run.damaged


@pytest.mark.parametrize("name", GRID)
@pytest.mark.parametrize("kind", RUNS)
def test_damage_to_any_record_is_named(kind: str, name: str, saved: Mapping[str, Path], tmp_path: Path) -> None:
    if not (saved[kind] / name).exists():
        pytest.skip("no such record")
    original, folder = (saved[kind] / "summary.json").read_bytes(), tmp_path / "damaged"
    for count, damage in enumerate(_damaged(saved[kind], folder, name, AGAINST_MANIFEST)):
        assert any(line.startswith(name) for line in run_folder.load(folder).damaged), damage
        if count:  # the report of the other records is always the same
            continue
        run = _redraw(folder)
        assert isinstance(run, Run) or "\n" not in run  # a line says that nothing can be drawn without this record
        summary = json.loads((folder / "summary.json").read_text())
        assert (summary["complete"], summary["passed"]) == (False, False)
        assert any(line.startswith(name) for line in summary["damaged"])
        assert (folder / run_folder.ORIGINAL_SUMMARY).read_bytes() == original


@pytest.mark.parametrize("name", [name for name in GRID if name not in NOT_READ])
@pytest.mark.parametrize("kind", RUNS)
def test_damage_without_a_manifest_is_no_traceback(
    kind: str, name: str, saved: Mapping[str, Path], tmp_path: Path
) -> None:
    if not (saved[kind] / name).exists():
        pytest.skip("no such record")
    unverified, folder = tmp_path / "unverified", tmp_path / "damaged"
    shutil.copytree(saved[kind], unverified)
    (unverified / "manifest.json").unlink()
    for damage in _damaged(unverified, folder, name, DAMAGES):
        message = ""
        try:
            run = run_folder.load(folder)
            assert not run.verified, damage
            is_named = any(line.startswith(name) for line in run.damaged)
            if damage in DRAWN_WITHOUT_MANIFEST and not is_named:  # a named record is left out, as a deleted one is
                message = str(_redraw(folder))
        except BadInput as error:
            message = str(error)
        assert not message.startswith("DIR") or len(message) < 300 + len(str(folder)), damage
        assert not message.startswith("DIR") or "\n" not in message, damage


NESTED = b'{"monotonic_ns":1,"source":"a","what":"b","detail":{"c":[' + b"{}," * 999 + b"{}]}}\n"


def test_a_text_that_would_take_gigabytes_is_refused_in_one_line(
    saved: Mapping[str, Path], tmp_path: Path, data_regression: DataRegressionFixture
) -> None:
    """It is refused before it is parsed, although it has fewer bytes than a file may have."""
    shutil.copytree(saved["grid"], folder := tmp_path / "out")
    (folder / "manifest.json").unlink()
    for name, part in (("events.jsonl", NESTED), ("recovery.csv", b"," * 999 + b"\n")):
        (folder / name).write_bytes(part * (24_000_000 // len(part)))
    data_regression.check({"damaged": sorted(run_folder.load(folder).damaged)})


def test_every_record_is_in_the_manifest(saved: Mapping[str, Path]) -> None:
    for folder in saved.values():
        entries = json.loads((folder / manifest.NAME).read_text())["files"]
        files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        assert entries.keys() == files - DRAWN - {manifest.NAME}
        assert entries["events.jsonl"]["rows"] == len((folder / "events.jsonl").read_bytes().splitlines())


def test_an_added_record_is_named_and_left_out(saved: Mapping[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "more"
    shutil.copytree(saved["multi-rail"], folder)
    for name in ("connectivity.csv", "replacement.csv"):
        shutil.copy(saved["grid"] / name, folder)
    (folder / "notes.txt").write_text("mine")
    names = [line.split()[0] for line in _damage_found(folder)]
    assert names == ["connectivity.csv", "replacement.csv"]
    assert not run_folder.load(folder).rows(CONNECTIVITY_CHECKS)


def _forge(folder: Path, name: str, sizes: Mapping[str, int] = MappingProxyType({})) -> None:
    """Make the manifest fit a record that was changed."""
    plain = json.loads((folder / manifest.NAME).read_text())
    entry, data = plain["files"][name], (folder / name).read_bytes() if name not in sizes else b""
    entry |= {"bytes": sizes.get(name, len(data)), "sha256": hashlib.sha256(data).hexdigest()}
    plain["sha256"] = hashlib.sha256(to_json(plain["files"])).hexdigest()
    (folder / manifest.NAME).write_bytes(to_json(plain))


@pytest.mark.parametrize("name", ["run.json", "spec.yaml", "provenance.json"])
@pytest.mark.parametrize("kind", RUNS)
def test_forged_records_are_no_defect(
    kind: str, name: str, saved: Mapping[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest can be written by anyone: it shows damage, and does not vouch for the types of values."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for number, odd in enumerate(([1], {"a": 1}, "x", None, 1e308)):
        folder = tmp_path / str(number)
        shutil.copytree(saved[kind], folder)
        record = yaml.safe_load((folder / name).read_text())
        (folder / name).write_text(
            json.dumps({key: odd if key != "format" else value for key, value in record.items()})
        )
        _forge(folder, name)
        message = _redraw(folder)
        assert isinstance(message, Run) or "\n" not in message
        if isinstance(message, str) and "crash report" in message:
            assert "Traceback" in Path(message.rpartition(" ")[2].rstrip(")")).read_text()


def test_no_more_is_read_than_a_record_can_be(saved: Mapping[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "huge"
    shutil.copytree(saved["grid"], folder)
    _huge(folder / "results.csv")
    _huge(folder / "summary.json")
    _forge(folder, "results.csv", {"results.csv": 3_000_000_000})
    (line,) = run_folder.load(folder).damaged
    assert line.startswith("results.csv can't be read: it has 3,000,000,000 bytes, more than")
    with pytest.raises(OSError, match="more than the 256,000,000 expected"), Folder(folder) as opened:
        run_folder.redraw(run_folder.load(opened), opened, Console(file=io.StringIO()))


def test_a_few_bytes_stand_for_no_gigabytes(data_regression: DataRegressionFixture) -> None:
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 8000), ["x" * 1_000_000])
    tables = {
        "long texts": pa.table({"a": repeated}),
        "many rows": pa.table({"a": pa.repeat(1.5, 4_000_000)}),
        "lists": pa.table({"a": pa.array([[1] * 1000])}),
        "a column twice": pa.table([pa.array(["1"])] * 2, names=["a", "a"]),
    }

    def read_back(table: pa.Table) -> None:
        data = io.BytesIO()
        pq.write_table(table, data, compression="zstd", store_schema=False)
        assert len(data.getvalue()) < 2_000_000
        from_parquet(data.getvalue(), "flows.parquet")

    data_regression.check(messages(read_back, tables))


def test_a_whole_folder_is_complete_and_stays_so(saved: Mapping[str, Path]) -> None:
    folder = saved["grid"]
    before = (folder / "summary.json").read_bytes()
    assert not _damage_found(folder)
    assert (folder / "summary.json").read_bytes() == before
    assert json.loads(before)["complete"] is True
    assert not (folder / run_folder.ORIGINAL_SUMMARY).exists()
