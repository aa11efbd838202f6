"""The pytest plugin (entry point ``pytest11``, docs/pytest.md section 4). It imports neither numpy nor the engine by itself.

Counts and reports go from pytest-xdist's workers to the controller as an attribute of each test's report, so that nothing is lost
with a worker that dies.
"""

from __future__ import annotations

import hashlib
import html
import os
import re
from typing import Any, Dict, Iterator, List, Optional

import pytest

_CRITERIA = ("bits", "bound", "nearer")


class _State:
    """Of one pytest run in this process; runs within runs (pytester) have one each."""

    def __init__(self, config: pytest.Config):
        self.server: Optional[str] = config.getoption("quantgate_server")
        self.directory: Optional[str] = config.getoption("quantgate_report")
        self.worker: str = getattr(config, "workerinput", {}).get("workerid", "")
        self.client: Any = None
        self.counts: Dict[str, int] = {}
        self.written: Dict[str, int] = {}


class _Totals:
    """What all tests of this run, on whatever worker, add up to."""

    def __init__(self) -> None:
        self.counts: Dict[str, int] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, count in getattr(report, "quantgate", {}).items():
            self.counts[name] = self.counts.get(name, 0) + count

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if any(self.counts.values()):
            terminalreporter.write_line(summary(self.counts))


_states: List[_State] = []


def count(criterion: str) -> None:
    """One assertion by a criterion was looked at."""
    if _states:
        counts = _states[-1].counts
        counts[criterion] = counts.get(criterion, 0) + 1


def server_client() -> Any:
    """The client of ``--quantgate-server``, connected where it is first asked for; None without that option."""
    state = _states[-1] if _states else None
    if state is None or state.server is None:
        return None
    if state.client is None:
        import quantgate

        state.client = quantgate.connect(state.server)
    return state.client


def summary(counts: Dict[str, int]) -> str:
    """``quantgate: 12 assertions by bits, 3 by bound, 1 failed``."""
    parts = []
    for criterion in _CRITERIA:
        number = counts.get(criterion, 0)
        if number:
            noun = "" if parts else " assertion" if number == 1 else " assertions"
            parts.append(f"{number}{noun} by {criterion}")
    return ", ".join([f"quantgate: {parts[0]}" if parts else "quantgate: no assertions", *parts[1:],
                      f"{counts.get('failed', 0)} failed"])


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("quantgate", "numerics of quantizers, GEMMs and layers")
    group.addoption("--quantgate-server", dest="quantgate_server", metavar="HOST:PORT", default=None,
                    help="the server that computes what assertions expect; by default this process does")
    group.addoption("--quantgate-report", dest="quantgate_report", metavar="DIR", default=None,
                    help="where a page is written for each failed assertion")


def pytest_configure(config: pytest.Config) -> None:
    state = _State(config)
    if state.directory is not None:
        try:
            os.makedirs(state.directory, exist_ok=True)
        except OSError as error:
            raise pytest.UsageError(f"--quantgate-report is {state.directory}: {error.strerror}") from None
    _states.append(state)
    config.pluginmanager.register(_Totals(), "quantgate-totals")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not _states:
        return
    state = _states.pop()
    close = getattr(state.client, "close", None)
    if close is not None:
        close()


@pytest.fixture(scope="session")
def quantgate() -> Any:
    """The assertions of ``quantgate.testing``, computed by the server of ``--quantgate-server`` or by this process."""
    import quantgate.testing

    return quantgate.testing


def _mismatches(error: Optional[BaseException]) -> Iterator[Any]:
    """The failed assertions behind an exception: itself, those of a group, and what it came from."""
    import sys

    testing = sys.modules.get("quantgate.testing")
    waiting, seen = [error], set()
    while testing is not None and waiting:
        one = waiting.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, testing.Mismatch):
            yield one
        waiting += [*getattr(one, "exceptions", ()), one.__cause__, None if one.__suppress_context__ else one.__context__]


def _file_name(state: _State, nodeid: str) -> str:
    """Of a test's page: readable, and no other test's, worker's or repetition's."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", nodeid.rpartition("/")[2])[:80].strip("-.")
    name = f"{readable}-{hashlib.sha256(nodeid.encode()).hexdigest()[:8]}"
    if state.worker:
        name += f"-{state.worker}"
    state.written[name] = state.written.get(name, 0) + 1
    return f"{name}.html" if state.written[name] == 1 else f"{name}-{state.written[name]}.html"


def _page(mismatch: Any) -> str:
    """The page of both sides, below what the assertion said."""
    said = f'<pre style="white-space:pre-wrap;padding:1em;border:1px solid">{html.escape(str(mismatch))}</pre>'
    report = mismatch.report
    if report is None:
        return f'<!doctype html><html lang="en"><meta charset="utf-8"><title>quantgate</title><body>{said}</body></html>'
    page = report.to_html()
    return re.sub(r"<body[^>]*>", lambda found: found.group(0) + said, page, count=1)


def _write_page(state: _State, item: pytest.Item, report: pytest.TestReport, mismatch: Any) -> None:
    from ._reports import write_whole

    path = os.path.join(os.path.abspath(str(state.directory)), _file_name(state, item.nodeid))
    try:
        write_whole(path, _page(mismatch))
    except Exception as error:  # The failure of a report must not take the place of the test's own.
        report.sections.append(("quantgate", f"no report: {error}"))
        return
    report.sections.append(("quantgate", f"report: {path}"))
    # The item's properties go into reports of later phases, among them the one that JUnit's file is written from.
    for properties in (item.user_properties, report.user_properties):
        properties.append(("quantgate_report", path))


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> Any:
    outcome = yield
    report, state = outcome.get_result(), _states[-1]
    counts, state.counts = state.counts, {}
    if report.failed and call.excinfo is not None:
        found = list(_mismatches(call.excinfo.value))
        if found:
            counts["failed"] = len(found)
        for mismatch in found if state.directory is not None else ():
            _write_page(state, item, report, mismatch)
    if counts:
        report.quantgate = counts
