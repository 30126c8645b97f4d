"""A run for continuous integration: JUnit XML, and Markdown for the summary of a job.

JUnit XML is as pytest writes it and Jenkins and GitLab read it: testsuites, testsuite, testcase with failure
or error. A suite has the checks of the run, another one its steps, of which one with an invalid interval failed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any
from xml.etree import ElementTree

from railyard.results import format as fmt
from railyard.results.analysis.run_analysis import Analysis
from railyard.results.runs.records import RUN, STEP
from railyard.results.views.report import repeated_lines


@dataclass(frozen=True, slots=True)
class Case:
    """A test case. `problem`: "failure", "error" or "" if it passed."""

    name: str
    text: str
    seconds: float = 0.0
    problem: str = ""


def junit(analysis: Analysis) -> bytes:
    """Return the run's checks and steps as JUnit XML."""
    checks: list[Case] = []
    for check in analysis.checks:
        problem = "" if check.passed else "failure"
        checks.append(Case(check.name, check.detail, problem=problem))
    steps: list[Case] = []
    for step in _steps(analysis):
        problem = "failure" if step["verdict"] == "invalid" else ""
        steps.append(Case(step["text"], step["result"], step["seconds"], problem))
    run = analysis.run
    return _xml(run.name, run.started_utc, {"checks": checks, "steps": steps}, run.duration_s)


def junit_without_records(name: str, problem: str) -> bytes:
    """Return the JUnit XML of a run that ended before it had measured anything."""
    return _xml(name, "", {"checks": [Case("the run went to its end", problem, problem="error")]}, 0.0)


def _steps(analysis: Analysis) -> Iterator[dict[str, Any]]:
    for event in analysis.run.events:
        if (event.source, event.what) == (RUN, STEP):
            yield event.detail


def _xml(run: str, started: str, suites: dict[str, Sequence[Case]], seconds: float) -> bytes:
    all_cases = list(chain.from_iterable(suites.values()))
    root = ElementTree.Element("testsuites", {"name": fmt.xml_text(run), **_counts(all_cases, seconds)})
    for suite, cases in suites.items():
        took_s = sum(case.seconds for case in cases)
        attributes = {
            "name": fmt.xml_text(f"{run}: {suite}"),
            "timestamp": fmt.xml_text(started),
            **_counts(cases, took_s),
        }
        parent = ElementTree.SubElement(root, "testsuite", attributes)
        for case in cases:
            case_attributes = {
                "classname": fmt.xml_text(f"{run}.{suite}"),
                "name": fmt.xml_text(case.name),
                "time": f"{case.seconds:.3f}",
            }
            element = ElementTree.SubElement(parent, "testcase", case_attributes)
            if case.problem:
                child = ElementTree.SubElement(
                    element, case.problem, {"message": fmt.xml_text(case.text), "type": suite}
                )
                child.text = fmt.xml_text(case.text)
            elif case.text:
                ElementTree.SubElement(element, "system-out").text = fmt.xml_text(case.text)
    ElementTree.indent(root)
    return bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)) + b"\n"


def _counts(cases: Sequence[Case], took_s: float) -> dict[str, str]:
    """Return the attributes of an element that say how many cases it has and how many failed."""
    problems = [case.problem for case in cases]
    return {
        "tests": str(len(cases)),
        "failures": str(problems.count("failure")),
        "errors": str(problems.count("error")),
        "skipped": "0",
        "time": f"{took_s:.3f}",
    }


def markdown(analysis: Analysis) -> bytes:
    """Return the run's result, checks and steps as Markdown."""
    run = analysis.run
    judgement = analysis.judgement
    checks = analysis.checks
    passed = sum(check.passed for check in checks)
    result = "passed" if analysis.passed else "failed"
    mark = {True: "✅", False: "❌"}
    interrupted = ", interrupted" if run.interrupted else ""
    lines = [
        f"### {mark[analysis.passed]} {fmt.markdown_cell(run.name)}: {result}",
        "",
        f"Fidelity **{judgement.verdict}**{interrupted}, "
        f"{passed} of {len(checks)} checks passed, took {fmt.markdown_cell(fmt.seconds(run.duration_s))}.",
        "",
    ]
    for line in (*judgement.reasons, *repeated_lines(analysis)):
        lines.append(f"- {fmt.markdown_cell(line)}")
    lines += ["", "| | check | |", "|---|---|---|"]
    for check in sorted(checks, key=lambda check: check.passed):
        lines.append(f"| {mark[check.passed]} | {fmt.markdown_cell(check.name)} | {fmt.markdown_cell(check.detail)} |")
    lines.append("")
    if steps := list(_steps(analysis)):
        lines += [f"<details><summary>{len(steps)} steps</summary>", ""]
        lines += ["| step | time | verdict | result |", "|---|---:|---|---|"]
        for step in steps:
            cells = (step["text"], f"{step['seconds']:.1f} s", step["verdict"], step["result"])
            lines.append(f"| {' | '.join(map(fmt.markdown_cell, cells))} |")
        lines += ["", "</details>", ""]
    return "\n".join(lines).encode()
