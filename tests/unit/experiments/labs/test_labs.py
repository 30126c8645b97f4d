"""Labs without packets: variants, pages and notebooks, the check of answers, grades, and their command line."""

import csv
import io
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from operator import itemgetter
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pytest_regressions.data_regression import DataRegressionFixture

from railyard.core.records import IntervalId, Recovered
from railyard.core.units import dimension_of
from railyard.experiments import cli
from railyard.experiments.labs import checking
from railyard.experiments.labs.definition import LABS, Lab, Mistake, NotDone, Question, Setting, find, in_order
from railyard.experiments.labs.functions import policy
from railyard.experiments.labs.pages import notebook, recorded, stem, student_page, teacher_page
from railyard.experiments.labs.reading import read_lab
from railyard.experiments.measures.steering.analysis import PolicyRow
from railyard.experiments.spec import loading
from railyard.results.analysis.run_analysis import Analysis
from tests.import_graph import ROOT
from tests.unit.experiments.command_errors import command_errors
from tests.unit.messages import messages
from tests.unit.stand_ins import run_of

LAB_LIST = in_order()
BY_NAME = pytest.mark.parametrize("lab", LAB_LIST, ids=stem)
STUDENTS = ["", *(f"student{n}" for n in range(20))]


QUESTIONS = (
    Question("number", "Which?", lambda s: 2.5, "Think", "", 0.1, (Mistake(lambda s: 5.0, "Twice as much"),)),
    Question("names", "Which?", lambda s: frozenset(["d0g1", "d1g1"]), "Look", ""),
    Question("word", "Which?", lambda s: "yes", "Read", ""),
)
SMALL = Setting.of(
    Lab(
        name="small",
        number=99,
        title="Small",
        summary="A lab that isn't registered: a number, a set and a word",
        minutes=20,
        text="{{ ask.number }} {{ ask.names }} {{ ask.word }}",
        choose_values=lambda choose: {},
        questions=QUESTIONS,
        plan_45="",
        plan_90="",
    )
)


def state(name: str, given: object) -> str:
    question = next(question for question in QUESTIONS if question.name == name)
    return checking.judge(SMALL, question, given).state


def right_answers(setting: Setting) -> dict[str, object]:
    """The right answers that depend on no run, as a student writes them."""
    found: dict[str, object] = {}
    for question in setting.lab.questions:
        try:
            answer = question.right(setting)
        except NotDone:
            continue
        found[question.name] = ", ".join(answer) if isinstance(answer, frozenset) else answer
    return found


def test_each_lab_has_a_number_of_its_own() -> None:
    assert len({lab.number for lab in LAB_LIST}) == len(LAB_LIST)


@pytest.mark.parametrize("given", [2.5, 2.7, "2.5", " 2.4 ", "250%", 2.25])
def test_numbers_within_their_share_are_right(given: object) -> None:
    assert state("number", given) == "right"


@pytest.mark.parametrize(
    "given",
    [
        2.2,
        "two",
        "2.5 or 3",
        "2.5%",
        "2.5 ms",
        "2,5",
        5,
        10**400,
        [],
        {"a": 1},
        "1e999",
        float("nan"),
        "2" * 9999 + "!",
    ],
)
def test_other_numbers_are_wrong(given: object) -> None:
    assert state("number", given) == "wrong"


@pytest.mark.parametrize(
    ("unit", "right", "given"),
    [
        ("s", 2.4, "2400 ms"),
        ("s", 2.4, "2.4s"),
        ("s", 2.4, 2.4),
        ("ms", 0.6, "600 us"),
        ("", 0.75, "75%"),
        ("%", 37.5, "37.5 %"),
        ("%", 37.5, 37.5),
        ("MB", 3.0, "3000 KB"),
        ("KiB", 1024.0, "1,048,576 B"),
        ("1/s", 320.0, "320/s"),
        ("1/s", 320.0, "320 1/s"),
    ],
)
def test_answers_are_right_in_any_unit_of_their_dimension(unit: str, right: float, given: object) -> None:
    question = Question("q", "?", lambda s: right, "Think", "", 0.02, unit=unit)
    assert checking.judge(SMALL, question, given).state == "right"


UNFITTING = {
    "minutes for seconds": ("s", 4.0, "4 min"),
    "ms for seconds": ("s", 0.6, "0.6 ms"),
    "percent for a share": ("", 0.75, "0.75 %"),
    "time for a count": ("", 4.0, "4 min"),
    "time for a size": ("MB", 3.0, "3 ms"),
    "size for a time": ("s", 3.0, "3 MB"),
    "decimal comma": ("MB", 375.0, "37,5"),
    "comma between thousands": ("B", 1048.0, "1,048"),
    "unknown unit": ("s", 3.0, "3 parsecs"),
    "no number": ("s", 3.0, "some"),
}


def _right(answer: float, setting: Setting) -> float:
    return answer


def test_a_unit_that_does_not_fit_is_wrong_and_named(data_regression: DataRegressionFixture) -> None:
    texts: dict[str, str] = {}
    for case, (unit, right, answer) in UNFITTING.items():
        question = Question("q", "?", partial(_right, right), "Think", "", 0.02, unit=unit)
        outcome = checking.judge(SMALL, question, answer)
        assert outcome.state == "wrong"
        texts[case] = outcome.message
    data_regression.check(texts)


@BY_NAME
def test_unit_of_every_question_can_be_read(lab: Lab) -> None:
    for question in lab.questions:
        assert dimension_of(question.unit)
        words = {"ms": "ms", "s": "seconds", "%": "percent"}
        for unit, word in words.items():
            assert question.unit == unit or f"how many {word}" not in question.text.lower(), question.name


@BY_NAME
def test_answers_with_their_unit_are_right(lab: Lab, tmp_path: Path) -> None:
    setting = Setting.of(lab, "ada", tmp_path)
    for question in lab.questions:
        answer = right_answers(setting).get(question.name)
        if isinstance(answer, int | float):
            assert checking.judge(setting, question, f"{answer} {question.unit}").state == "right", question.name


@pytest.mark.parametrize("student", STUDENTS[:6])
def test_spine_cables_equal_the_drawn_cables(student: str) -> None:
    setting = Setting.of(find("1"), student)
    ends = [(link.a.node, link.b.node) for link in setting.plan(kind="rail-optimized").links]
    cables = [pair for pair in ends if any(name.startswith("spine") for name in pair)]
    assert right_answers(setting)["links"] == len(cables) == 2 * setting["rails"]


@pytest.mark.parametrize("student", STUDENTS[:6])
def test_scores_are_asked_in_the_form_of_dry_run(student: str, capsys: pytest.CaptureFixture[str]) -> None:
    setting = Setting.of(find("6"), student)
    hot = list(range(setting["senders"]))
    overrides = [f"background=[{{rails: {hot}, load: {setting['load']}}}]", f"workloads.0.ranks={hot}"]
    overrides += [f"rails={setting['rails']}"]
    words = [word for text in overrides for word in ("-o", text)]
    assert cli.main(["dry-run", "hot-rail", *words]) == 0
    scores = re.search(r"begins: rails 0 to \d+: (\d+), \d+ to \d+: (\d+);", capsys.readouterr().out)
    assert scores
    answers = right_answers(setting)
    assert answers["dr_score"] == pytest.approx(float(scores[1]))
    assert answers["drd_score"] == pytest.approx(float(scores[2]))


@pytest.mark.parametrize(("outcome", "answer"), [("yes", "yes"), ("unaffected", "yes"), ("no", "no")])
def test_traffic_that_a_cut_plane_did_not_affect_counts_as_back(
    monkeypatch: pytest.MonkeyPatch, outcome: str, answer: str
) -> None:
    recovery = SimpleNamespace(recovered=Recovered(outcome))
    monkeypatch.setattr(Setting, "recovery", lambda *_, **keys: recovery)
    setting = Setting.of(find("9"))
    (question,) = (question for question in setting.lab.questions if question.name == "back")
    assert question.right(setting) == answer


def test_sets_are_right_in_any_order_and_case() -> None:
    assert state("names", "D1G1, d0g1") == state("names", ["d0g1", "d1g1"]) == "right"
    assert state("names", "d0g1") == state("names", "d0g1, d1g1, d2g1") == "wrong"


def test_words_are_right_also_as_yaml_booleans() -> None:
    assert state("word", True) == state("word", " YES ") == "right"
    assert state("word", False) == "wrong"
    assert state("word", None) == "missing"


def test_a_common_mistake_has_a_hint_of_its_own() -> None:
    outcome = checking.judge(SMALL, QUESTIONS[0], 5)
    assert outcome.message == "Twice as much. Think"


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=3)))
def test_any_answer_is_judged(given: object) -> None:
    for question in QUESTIONS:
        assert checking.judge(SMALL, question, given).state in ("right", "wrong", "missing")


@BY_NAME
def test_variants_depend_on_the_name_alone_and_differ(lab: Lab) -> None:
    variants = [dict(Setting.of(lab, student).values) for student in STUDENTS]
    assert variants == [dict(Setting.of(lab, student).values) for student in STUDENTS]
    assert len({str(variant) for variant in variants}) >= 4


@BY_NAME
@pytest.mark.parametrize("student", STUDENTS[:6])
def test_right_answers_are_right_and_mistakes_wrong(lab: Lab, student: str, tmp_path: Path) -> None:
    setting = Setting.of(lab, student, tmp_path)
    answers = right_answers(setting)
    for question in lab.questions:
        is_answered = question.name in answers
        outcome = checking.judge(setting, question, answers.get(question.name, "x"))
        assert outcome.state == ("right" if is_answered else "missing"), question.name
        assert checking.judge(setting, question, "no such thing").state != "right"
        for mistake in question.mistakes if is_answered else ():
            answer = mistake.answer(setting)
            given = ", ".join(answer) if isinstance(answer, frozenset) else answer
            assert checking.judge(setting, question, given).state == "wrong", (question.name, mistake.reason)


@BY_NAME
def test_hints_do_not_contain_the_answer(lab: Lab, tmp_path: Path) -> None:
    for student in STUDENTS:
        setting = Setting.of(lab, student, tmp_path)
        for name, answer in right_answers(setting).items():
            hint = checking.judge(setting, next(q for q in lab.questions if q.name == name), "no such thing").message
            if not (isinstance(answer, str) and answer in ("yes", "no")):
                assert str(answer).lower() not in hint.lower().replace(",", " ").replace(".", " ").split(), name


@BY_NAME
def test_a_page_has_every_question_and_every_run(lab: Lab) -> None:
    setting = Setting.of(lab, "ada")
    page = student_page(setting)
    for question in lab.questions:
        assert page.count(f"`{question.name}`:**") == 1
    for run in lab.runs:
        assert page.count(setting.command(run)) == 1
        loading.load_any(
            run.experiment, [text.replace(run.plugin_name, run.stand_in) for text in setting.overrides(run)]
        )
    assert 20 <= lab.minutes <= 45
    assert "{{" not in page


def test_docs_link_every_lab_with_its_minutes() -> None:
    rows = re.findall(r"^\| \[(.*?)\]\(\.\./(labs/.*?)\) \| (\d+) ", (ROOT / "docs/labs.md").read_text(), re.MULTILINE)
    assert rows == [(f"{lab.number}. {lab.title}", f"labs/{stem(lab)}.md", str(lab.minutes)) for lab in LAB_LIST]


def test_a_notebook_has_a_cell_for_each_block_of_commands() -> None:
    pytest.importorskip("jupytext", reason="needs jupytext: script/bootstrap labs")
    page = student_page(Setting.of(find("3")))
    cells = json.loads(notebook(page))["cells"]
    sources = map(itemgetter("source"), cells)
    commands = [source for source in sources if source.startswith("%%bash -e\n")]
    assert len(commands) == page.count("```sh\n") == 5
    assert commands[-1] == "%%bash -e\nscript/run lab check 3"


def test_a_teachers_page_has_answers_and_recorded_ones() -> None:
    lab = find("3")
    page = teacher_page(Setting.of(lab), recorded(lab))
    assert "Answer: **9.375** (± 2%). " in page
    assert "- **7.407**: " in page
    assert "Typical answer: **1.594** (± 1%)." in page
    assert page.count("\n## Real output\n\n```sh\nscript/run predict moe-slowdown") == 1


@BY_NAME
def test_typical_answers_exist_for_questions_about_a_run(lab: Lab) -> None:
    expected = {question.name for question in lab.questions} - right_answers(Setting.of(lab)).keys()
    assert recorded(lab).typical.keys() == expected


FRONT_MATTER = """\
---
name: small
number: 90
title: Small
summary: Small
minutes: 20
values: {first: [1, 2], second: {compute: first + 1}, third: "{{ second }} GPUs"}
plan_45: Count
plan_90: Count
questions:
  count: {text: How many?, compute: second, hint: Count, why: It is so}
---
"""


def test_values_are_computed_from_those_before_them() -> None:
    lab = read_lab(FRONT_MATTER + "{{ third }}", "lab.md")
    values = {str(lab.choose_values(random.Random(seed))) for seed in range(9)}
    assert values == {
        "{'first': 1, 'second': 2, 'third': '2 GPUs'}",
        "{'first': 2, 'second': 3, 'third': '3 GPUs'}",
    }
    setting = Setting.of(lab)
    assert lab.questions[0].right(setting) == setting["second"]


MISTAKES = {
    "no front matter": ("---\nname", "name"),
    "no title": ("title: Small\n", ""),
    "misspelt key": ("minutes: 20", "minuts: 20"),
    "unknown name in an expression": ("compute: second", "compute: third_"),
    "half an expression": ("compute: second", "compute: second +"),
    "answer and expression": ("compute: second,", "compute: second, answer: 2,"),
    "missing module": ("minutes: 20", "minutes: 20\nfunctions: no.such"),
}


def test_a_mistake_in_a_labs_file_is_named(data_regression: DataRegressionFixture) -> None:
    data_regression.check(messages(lambda case: read_lab(FRONT_MATTER.replace(*case), "lab.md"), MISTAKES))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_answers(folder: Path, answers: dict[str, object]) -> None:
    path = folder / checking.ANSWERS
    data = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**data, "answers": answers}))


def test_lab_guides_checks_and_grades(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["lab", "1", "--student", "ada"]) == 0
    assert "Build" in capsys.readouterr().out
    folder = here / "lab1-ada"
    assert {"lab.md", "answers.yaml"} <= {path.name for path in folder.iterdir()}
    assert cli.main(["lab", "check", "1", "--student", "ada"]) == 1
    assert "missing forwards: " in capsys.readouterr().out
    answers = right_answers(Setting.of(find("1"), "ada"))
    write_answers(folder, answers | {"pairs": 1})
    assert cli.main(["lab", "check", "1", "lab1-ada"]) == 1
    shown = capsys.readouterr().out
    assert "wrong   pairs" in shown
    assert "right   forwards" in shown
    assert cli.main(["lab", "check", "1", "lab1-ada", "--json"]) == 1
    outcomes = {outcome["item"]: outcome["state"] for outcome in json.loads(capsys.readouterr().out)}
    assert (outcomes["pairs"], outcomes["forwards"]) == ("wrong", "right")
    cli.main(["lab", "1", "--student", "ada"])
    assert "8 of 9 done" in capsys.readouterr().out
    write_answers(folder, answers)
    assert cli.main(["lab", "check", "fabrics", "lab1-ada/answers.yaml"]) == 0
    (here / "bad").mkdir()
    (here / "bad" / "answers.yaml").write_text("lab: 77")
    assert cli.main(["lab", "grade", "."]) == 0
    grades = list(csv.DictReader((here / "grades.csv").read_text().splitlines()))
    rows = dict(zip(map(itemgetter("folder"), grades), grades, strict=True))
    assert (rows["lab1-ada"]["right"], rows["lab1-ada"]["questions"]) == ("9", "9")
    assert "not a lab" in rows["bad"]["problem"]


def test_no_students_folder_ends_the_grading(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names and records are a student's, and all of them may be forged."""
    monkeypatch.setattr(tempfile, "tempdir", str(here))
    for name, text in (
        (b"a\xff\x1b[31m", "lab: 77"),
        (b"b\nc", "lab: 1\nanswers: {" + "x" * 5000 + ": 1}"),
        (b" =1+1", "lab: 1"),
        (b"d", f"lab: '{'9' * 5000}'"),
        (b"e", "lab: 3\nstudent: eve"),
    ):
        folder = here / os.fsdecode(name)
        folder.mkdir()
        (folder / "answers.yaml").write_text(text)
    monkeypatch.setattr(Setting, "records", lambda *_: dict[str, Analysis]()["forged"])
    assert cli.main(["lab", "grade", "."]) == 0
    text = capsys.readouterr().err
    assert "\x1b" not in text
    assert all(len(line) <= 300 for line in text.splitlines())
    rows = list(csv.DictReader(io.StringIO((here / "grades.csv").read_text())))
    assert sorted(map(itemgetter("folder"), rows)) == ["' =1+1", "a\\udcff\\x1b[31m", "b\\nc", "d", "e"]
    assert "KeyError" in rows[-1]["problem"]


@pytest.fixture
def forgotten_lab() -> Iterator[None]:
    """The lab `switches` is not registered for the next test of this process."""
    yield
    LABS.remove("switches")


@pytest.mark.usefixtures("forgotten_lab")
def test_a_plugins_lab_is_one_markdown_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin = ["--plugin", str(ROOT / "docs" / "examples" / "my_lab.md")]
    assert cli.main(["lab", "90", *plugin]) == 0
    assert cli.main(["lab", "check", "90", *plugin]) == 1
    rails = Setting.of(find("switches"))["rails"]
    write_answers(here / "lab90", {"switches": rails})
    assert cli.main(["lab", "check", "90", *plugin]) == 0
    assert "1 of 1 right" in capsys.readouterr().out


def test_bad_input_is_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], data_regression: DataRegressionFixture
) -> None:
    cli.main(["lab", "1"])
    capsys.readouterr()
    lines = ("99", "check", "check 1 nowhere", "grade nowhere", "1 --student ../x", "check 4 lab1", "1 a b")
    data_regression.check(command_errors(capsys, {line: ["lab", *line.split()] for line in lines}))


@pytest.mark.parametrize(("own_s", "hint"), [(1.2, ""), (1.8, "mine took 1.8 s")])
def test_a_policy_that_misses_the_goal_gets_a_hint(own_s: float, hint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def row(policy: str, seconds: float) -> PolicyRow:
        return PolicyRow("rail-only", IntervalId(), policy, (seconds,), 1.0, *(None,) * 7)

    analysis = Analysis(run_of())
    rows = {("rail-only", IntervalId()): (row("mine", own_s), row("oracle", 1.4))}
    monkeypatch.setattr(policy, "rows_of", lambda analysis: rows)
    problem = policy.near_the_oracle(analysis)
    assert problem.startswith(hint)
    assert bool(problem) == bool(hint)


def test_a_starter_works_and_is_worse_than_the_solution(here: Path) -> None:
    lab = find("10")
    setting = Setting.of(lab, "", here)
    starter = lab.starter
    assert starter
    seconds = []
    for text in (starter.text, starter.solution):
        (here / starter.file).write_text(text)
        words = [word for text in setting.overrides(lab.runs[0]) for word in ("-o", text)]
        command = [sys.executable, str(ROOT / "run_experiment.py"), "predict", "hot-rail", *words]
        subprocess.run(
            [*command, "--plugin", str(here / starter.file), "--out", str(here)], capture_output=True, check=True
        )
        with (here / "hot-rail.csv").open() as file:
            rows = {row["policy"]: float(row["predicted"]) for row in csv.DictReader(file)}
        seconds.append(rows["mine"] / rows["oracle"])
    assert seconds[0] > policy.ENOUGH > seconds[1]


def test_grades_are_no_formulas_for_a_spreadsheet() -> None:
    rows: list[dict[str, object]] = [dict.fromkeys(checking.GRADE_COLUMNS, "=1+1")]
    assert "'=1+1" in checking.to_csv(rows)
