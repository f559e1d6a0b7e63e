"""The Gates screen on real judged runs: what it says, where the keys go, how it looks at both sizes and themes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import waiting
from job_queue import held, lab
from judged import plan, right, small_dataset, write_run
from refusals import mentions, refused
from textual.pilot import Pilot
from textual.worker import WorkerCancelled

from vlmconsole.app import ConsoleApp
from vlmconsole.desks.gates import AUDITS, GateDesk
from vlmconsole.gates.binding import freeze_for_lab, record
from vlmconsole.gates.figures import short_answer
from vlmconsole.gates.metrics import METRICS
from vlmconsole.gates.plan import Gate, load_plan
from vlmconsole.gates.samples import Case
from vlmconsole.gates.verdict import judge
from vlmconsole.lab import Lab
from vlmconsole.ledger.chain import Ledger
from vlmconsole.queue.store import Store
from vlmconsole.runs.folder import RunFolder
from vlmconsole.runs.places import Places
from vlmconsole.screens.gates.rows import interval_bar, run_label
from vlmconsole.screens.gates.screen import GatesScreen
from vlmconsole.screens.pictures.picture import PictureView
from vlmconsole.screens.pictures.zoom import Zoom
from vlmconsole.screens.widgets.dialogs import Reader
from vlmconsole.vision.images import PictureError

pytestmark = pytest.mark.usefixtures("utc")

FROZEN = 1_796_000_000.0


class Clock:
    """Time as the lab sees it: every look is a second later, so that hashes and dates are the same each time."""

    def __init__(self) -> None:
        self.t = FROZEN

    def __call__(self) -> float:
        self.t += 1
        return self.t


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    """A failing run, a passing one and a plan that has judged none yet, all dated and named the same every time."""
    places = lab(tmp_path / "home")
    with monkeypatch.context() as dated:
        dated.setattr(time, "time", Clock())
        dated.setattr(RunFolder, "new_name", staticmethod(lambda parent, preset: _names.pop(0)))
        _names = ["20261129-140000-repair-1-tiny-a1b2", "20261129-150000-repair-2-tiny-c3d4"]
        made(places, right(5, {"naming": 9}), right(8, {"hollow": 6, "naming": 9}))
        made(places, right(2, {"naming": 9}), right(9, {"naming": 10}))
        freeze_for_lab(load_plan("repair-15-tiny"), places.home, Ledger(places.ledger))
    with held(places):
        yield places


def made(places: Places, before: Any, after: Any) -> RunFolder:
    # Not bound to its pictures: their bytes, and with them the plan's hash, are the picture library's own.
    run, ledger = write_run(places.home, plan(), before, after, bound=False), Ledger(places.ledger)
    run.set_state("done")
    record(judge(run, ledger), run, ledger)
    ledger.seal(run)
    return run


def app(places: Places, theme: str = "dark") -> ConsoleApp:
    places.config.write_text(f'server = "none"\ntheme = "{theme}"\n')
    return ConsoleApp(Lab.open(places.home))


async def settle(pilot: Pilot[None]) -> None:
    for _ in range(3):
        await pilot.pause()
        some = list(pilot.app.workers)
        if some:
            with contextlib.suppress(WorkerCancelled):  # a picture that gave way to the next one
                await pilot.app.workers.wait_for_complete(some)
    await pilot.pause()


def after(*keys: str) -> Callable[[Pilot[None]], Any]:
    """Open the screen, wait for its first look, then press `keys`, each settled."""

    async def run(pilot: Pilot[None]) -> None:
        await settle(pilot)
        for key in ("f4", *keys):
            await pilot.press(key)
            await settle(pilot)
        screen = pilot.app.screen
        if isinstance(screen, GatesScreen):  # a cursor that moved blanks the panes until the next look
            await waiting.until(lambda: not screen.entries.items or screen.opened is not None)
        await pilot.pause(0.2)
        await settle(pilot)

    return run


def told(screen: GatesScreen, name: str) -> str:
    return str(screen.query_one(name).render())


async def test_from_the_list_to_the_picture_that_decides(home: Places) -> None:
    """Failing conditions first; each shows its own pictures, what was lost before what was won."""
    async with app(home).run_test(size=(120, 40)) as pilot:
        await after("j")(pilot)
        screen = pilot.app.screen
        assert isinstance(screen, GatesScreen)
        assert mentions(told(screen, "#gate-head"), "FAIL", "3 pass", "2 fail", "0 cannot judge")
        assert "intact ✓" in told(screen, "#gate-head")
        gates = screen.verdicts.rows
        assert [one.gate.group for one in gates.items if not isinstance(one, type(None))][:2] == ["hollow", "hollow"]
        line = gates.line(1, 98).plain
        assert "gain, low end" in line and "├" in line and line.rstrip().endswith("FAIL  one image")
        assert mentions(told(screen, "#case-head"), "4 of 10", "1 won", "0 lost", "McNemar p 1")
        outcomes = [case.outcome for case in screen.evidence.rows.items]
        assert outcomes == ["wrong"] * 4 + ["won"] + ["right"] * 5
        first = screen.evidence.rows.items[0]
        view = screen.query_one(PictureView)
        assert view.source.sha256 == first.after.picture_sha256, "the very picture, by its hash"
        assert any(segment.text.strip("▀") == "" for segment in view.render_line(2))
        assert mentions(told(screen, "#claims Said"), "round", "goal")
        await pilot.press("right_square_bracket", "right_square_bracket", "j")
        await settle(pilot)
        assert screen.query_one(PictureView).source.sha256 == screen.evidence.rows.items[1].after.picture_sha256
        await pilot.press("enter")
        assert isinstance(pilot.app.screen, Reader)
        await pilot.press("escape", "z")
        await settle(pilot)
        assert isinstance(pilot.app.screen, Zoom)
        await pilot.press("escape", "escape")
        assert screen.focused is screen.entries


async def test_the_list_tells_runs_apart_and_shows_which_is_chosen(home: Places) -> None:
    async with app(home).run_test(size=(120, 40)) as pilot:
        await after()(pilot)
        screen = pilot.app.screen
        assert isinstance(screen, GatesScreen)
        rows = screen.entries
        assert [rows.line(y, 26).plain.rstrip() for y in (0, 1)] == [
            " ✓ repair-2-tiny     c3d4",
            " ✗ repair-1-tiny     a1b2",
        ]
        assert rows.line(2, 26).plain.startswith(" § repair-15-tiny")
        wide = rows.line(1, 80).plain
        assert wide.startswith(" ✗ 11-29 14:00  repair-1-tiny") and wide.rstrip().endswith("a1b2  FAIL  small-plan")
        # The Jobs screen, whose style sheet has the cursor's look too, was never opened here.
        for view in (rows, screen.evidence.rows):
            chosen, other = (view.render_line(y)._segments[0].style for y in (0, 1))
            assert chosen is not None and other is not None and chosen.bgcolor != other.bgcolor, view.id


async def test_what_the_evidence_lacks_stands_above_the_conditions(home: Places) -> None:
    """An edited answer, seen while the screen is open: CANNOT JUDGE, with the reason and the broken seal."""
    async with app(home).run_test(size=(120, 40)) as pilot:
        await after()(pilot)
        screen = pilot.app.screen
        assert isinstance(screen, GatesScreen)
        assert told(screen, "#gate-head").startswith("PASS")
        path = home.runs / screen.entries.items[0].name / "after.jsonl"
        path.write_text(path.read_text().replace('"all_correct": false', '"all_correct": true', 1))
        screen.look()
        await settle(pilot)
        head = told(screen, "#gate-head")
        assert head.startswith("CANNOT JUDGE") and mentions(head, "scores", "after.jsonl"), head
        assert "✗ changed: after.jsonl" in head
        assert "cannot judge" in screen.verdicts.rows.line(0, 98).plain
        assert mentions(told(screen, "#claims Said"), "evidence", "incomplete")


async def test_a_plan_shows_its_limits_and_an_audit_its_checklist(home: Places) -> None:
    name = "20261129-150000-repair-2-tiny-c3d4"
    (home.home / AUDITS).mkdir()
    findings = [
        {"name": "plan frozen", "state": "ok", "text": "before the first answer"},
        {"name": "scores", "state": "wrong", "text": "1 wrong"},
    ]
    value = {"verdict": "FAIL", "t": FROZEN, "findings": findings}
    (home.home / AUDITS / f"{name}.json").write_text(json.dumps(value))
    async with app(home).run_test(size=(80, 24)) as pilot:
        await after("left_square_bracket")(pilot)
        screen = pilot.app.screen
        assert isinstance(screen, GatesScreen)
        said = told(screen, "#audit Said")
        assert said.index("✗ scores") < said.index("✓ plan frozen") and mentions(said, "Audit FAIL", "1 of 2")
        await pilot.press("escape", "j", "j")
        await settle(pilot)
        assert screen.opened is not None and screen.opened.entry.kind == "plan"
        assert screen.opened.plan is not None and screen.opened.plan.name == "repair-15-tiny"
        assert mentions(told(screen, "#gate-head"), "frozen plan", "limits")
        rows = screen.verdicts.rows
        assert len(rows.powers) == len(rows.items) and mentions(
            rows.line(0, 120).plain, "sees", "pts", "50 %", "assumed"
        )
        assert len(screen.verdicts.rows.items) == 15 and "≥ 85 %" in screen.verdicts.rows.line(0, 80).plain
        assert screen.check_action("run_audit", ()) is False
        await pilot.press("slash", *"fail")
        await settle(pilot)
        assert [entry.verdict for entry in screen.entries.items] == ["FAIL"]
        await pilot.press("escape")
        assert len(screen.entries.items) == 3


async def test_keys_check_and_audit_do_what_their_commands_do(home: Places) -> None:
    async with app(home).run_test(size=(80, 24)) as pilot:
        await after()(pilot)
        entries = len(Ledger(home.ledger).read().entries)
        await pilot.press("c")
        await settle(pilot)
        assert len(Ledger(home.ledger).read().entries) == entries, "the same verdict is held once"
        await pilot.press("A")
        await settle(pilot)
        store = Store(home.queue)
        job = store.get(1)
        store.close()
        assert job.preset == "audit" and job.spec["run"] == "20261129-150000-repair-2-tiny-c3d4"


def test_a_picture_is_found_by_its_hash_or_said_to_be_gone(home: Places) -> None:
    desk = GateDesk(home)
    opened = desk.open(desk.listing()[0])
    case = opened.deciding(Gate(group="hollow", metric="partial", at_least=0.8))[0]
    assert desk.images.image(case.after, opened.entry.path).sha256 == case.after.picture_sha256
    assert desk.open(desk.listing()[0]) is opened, "read once, until a file changes"
    shutil.rmtree(home.datasets)
    with refused("image-missing", case.after.picture_sha256[:12], error=PictureError):
        GateDesk(home).images.image(case.after, opened.entry.path)


@pytest.mark.parametrize("metric", METRICS)
def test_the_pictures_that_decide_come_first_and_wrong_before_right(metric: str) -> None:
    def case(name: str, before: float, after: float) -> Any:
        sides = [
            SimpleNamespace(id=name, partial=value, all_correct=value == 1.0, valid=True) for value in (before, after)
        ]
        return Case(*sides)  # type: ignore[arg-type]

    cases = [case("a-right", 1, 1), case("b-wrong", 0.5, 0.5), case("c-won", 0.5, 1), case("d-lost", 1, 0.5)]
    told = [one.after.id for one in sorted(cases, key=METRICS[metric].deciding)]
    assert told[0] == "d-lost" and told.index("b-wrong") < told.index("a-right")


def test_a_listing_survives_damaged_files(home: Places) -> None:
    desk = GateDesk(home)
    plan_file = next((home.home / "plans").glob("repair*"))
    plan_file.write_text("{")
    (home.runs / desk.listing()[0].name / "plan.json").write_bytes(os.urandom(64))
    entries = desk.listing()
    assert any(mentions(entry.plan, "cannot be read") for entry in entries)
    for entry in entries:
        opened = desk.open(entry)
        assert opened.fault or opened.verdict or opened.plan
    home.ledger.write_text(home.ledger.read_text().replace('"kind":"sealed"', '"kind":"seated"', 1))
    assert "was changed" in desk.open(desk.listing()[0]).chain


def test_interval_bars_answers_and_names() -> None:
    assert interval_bar((-0.5, 0.5), 1.0, 9) == "  ├─○─┤  "
    assert interval_bar((0.5, 1.0), 1.0, 9) == "    ┊ ├○┤"
    assert len(interval_bar((-9.0, 9.0), 1.0, 15)) == 15
    assert interval_bar((0.0, 0.0), 0.02, 5) == "  ○  "
    assert short_answer('{"red_circles": 3, "blue_squares": 2}') == "3/2"
    assert short_answer("\x1b[31mred\n") == short_answer("\x1b[31mred\n").replace("\x1b", "")
    assert short_answer(None) == "no answer"
    assert short_answer(("a", "b")) == "a"
    assert run_label("20261129-140000-repair-1-tiny-a1b2") == ("11-29 14:00", "repair-1-tiny", "a1b2")
    assert run_label("foreign") == ("", "foreign", "")


@pytest.mark.parametrize("theme", ["dark", pytest.param("light", marks=pytest.mark.slow)])
def test_failing_120(snap_compare: Any, home: Places, theme: str) -> None:
    assert snap_compare(app(home, theme), terminal_size=(120, 40), run_before=after("j"))


def test_a_plan_with_its_power_120(snap_compare: Any, home: Places) -> None:
    assert snap_compare(app(home), terminal_size=(120, 40), run_before=after("j", "j"))


def test_a_plan_with_its_power_80(snap_compare: Any, home: Places) -> None:
    assert snap_compare(app(home), terminal_size=(80, 24), run_before=after("j", "j", "enter"))


def test_conditions_80(snap_compare: Any, home: Places) -> None:
    assert snap_compare(app(home), terminal_size=(80, 24), run_before=after("j", "enter"))


@pytest.mark.slow
def test_pictures_80(snap_compare: Any, home: Places) -> None:
    keys = ("j", "right_square_bracket", "right_square_bracket")
    assert snap_compare(app(home, "light"), terminal_size=(80, 24), run_before=after(*keys))


@pytest.mark.slow
def test_claims_80(snap_compare: Any, home: Places) -> None:
    keys = ("left_square_bracket", "left_square_bracket")
    assert snap_compare(app(home), terminal_size=(80, 24), run_before=after(*keys))


@pytest.mark.slow
def test_empty_80(snap_compare: Any, tmp_path: Path) -> None:
    places = lab(tmp_path / "home")
    with held(places):
        assert snap_compare(app(places), terminal_size=(80, 24), run_before=after())


@pytest.mark.slow
async def test_a_large_lab_is_listed_without_holding_up_the_screen(tmp_path: Path) -> None:
    """Three hundred judged runs are read beside the screen: its own thread has hardly anything to do."""
    places = lab(tmp_path / "home")
    small_dataset(places.home)
    run = made(places, right(5, {"naming": 9}), right(8, {"naming": 9}))
    for number in range(300):
        shutil.copytree(run.path, places.runs / f"20261128-{number:06}-copy-{number:04x}")
    async with app(places).run_test(size=(120, 40)) as pilot:
        await settle(pilot)
        began = time.thread_time()  # of the screen's thread, which no other load of the machine makes longer
        await pilot.press("f4")
        await settle(pilot)
        busy = time.thread_time() - began
        screen = pilot.app.screen
        assert isinstance(screen, GatesScreen) and len(screen.entries.items) == 301
    assert busy < 2.0, busy
