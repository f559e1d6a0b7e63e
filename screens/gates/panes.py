"""Panes of the Gates screen: what is said of a run above its conditions, its pictures, its claims, its audit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from vlmconsole.desks.gates import OpenedEntry
from vlmconsole.gates.figures import short_answer
from vlmconsole.gates.plan import Gate
from vlmconsole.gates.samples import Case
from vlmconsole.gates.verdict import Judged
from vlmconsole.screens.background import in_background
from vlmconsole.screens.gates.rows import OUTCOME_SIGNS, CaseRows, GateRows, case_header
from vlmconsole.screens.pictures.choose import picture_view
from vlmconsole.screens.terminal.terminal import Drawing
from vlmconsole.screens.theme import painted
from vlmconsole.screens.widgets.said import Said
from vlmconsole.text.plain import inert, one_line
from vlmconsole.text.signs import sign_of
from vlmconsole.text.times import minute
from vlmconsole.vision.images import Picture, PictureError

Piece = Content | str | tuple[str, str]
EMPTY = Content.assemble(
    ("No judged runs yet", "bold"),
    ("\n\nA run is judged only by a plan frozen before its first sample.\n\n", "$muted"),
    ("1  make the images      ", "$muted"), "vlmconsole data make sft-expand-tiny\n",
    ("2  freeze a plan        ", "$muted"), "vlmconsole gates freeze sft-7-tiny --data …\n",
    ("3  evaluate before and after under that plan; the run is judged when it ends\n", "$muted"),
    ("4  read the verdict     ", "$muted"), "here, or vlmconsole gates check RUN\n\n",
    ("Verdicts are PASS, FAIL or CANNOT JUDGE; frozen limits never change.", "$muted"),
)  # fmt: skip


class Verdicts(Vertical):
    """Verdict and counts, the plan and its chain, what is wrong with the evidence; below, the conditions."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._width = 0
        self.head, self.columns, self.rows = Said(id="gate-head"), Said(id="gate-columns"), GateRows(id="gate-rows")
        self.empty = Said(id="gates-empty")

    def compose(self) -> ComposeResult:
        yield from (self.head, self.columns, self.rows, self.empty)

    def on_mount(self) -> None:
        self.empty.display = False
        self.head.say(Content("reading runs and plans …").stylize("$muted"))

    def show_empty(self, text: Content) -> None:
        """Nothing to judge: how to come to something, in the table's place."""
        for part, visible in ((self.head, False), (self.columns, False), (self.rows, False), (self.empty, True)):
            part.display = visible
        self.empty.say(text)

    def show(self, opened: OpenedEntry, *, first: bool) -> None:
        for part, visible in ((self.head, True), (self.columns, True), (self.rows, True), (self.empty, False)):
            part.display = visible
        self.head.say(head(opened))
        items: Sequence[Judged | Gate] = (
            opened.verdict.gates if opened.verdict else opened.plan.gates if opened.plan else ()
        )
        self.rows.powers = {power.gate.name: power for power in opened.powers}
        self.rows.show(items, first=first)
        self.draw_columns()

    def on_resize(self) -> None:
        self.draw_columns()

    def draw_columns(self) -> None:
        # Hidden behind an empty page the rows have no width until the next layout: they get the one they had.
        self._width = self.rows.scrollable_content_region.width or self.rows.size.width or self._width
        self.columns.say(self.rows.header(self._width))


def when(t: float | None) -> str:
    return minute(t) if t is not None else "at an unknown time"


def head(opened: OpenedEntry) -> Content:
    """Return two or more lines: the verdict with its counts; plan, hash and chain; the first faults of the evidence."""
    pieces: list[Piece] = []
    verdict, plan = opened.verdict, opened.plan
    if verdict is not None:
        counts = verdict.counts
        pieces += [(verdict.label, f"bold ${sign_of(verdict.label).tone}"), "  "]
        pieces.append((f"{counts['PASS']} pass · {counts['FAIL']} fail · {counts['CANNOT JUDGE']} cannot judge", ""))
        if opened.entry.state in ("queued", "starting", "running"):
            pieces.append((f" · the run is {opened.entry.state}", "$warning"))
        pieces.append((f"   {one_line(opened.entry.name, 80)}", "$muted"))
    else:
        pieces += [("frozen plan", "bold"), ("  limits only, no run yet", "$muted")]
    pieces.append("\n")
    if plan is not None:
        pieces.append(
            (f"{one_line(plan.name, 40)} · frozen {when(opened.frozen)} · sha {opened.sha256[:12]}… · ", "$muted")
        )
    pieces.append(chain_state(opened))
    if opened.freezing is not None:
        pieces.append(
            (
                f"\n{'! ' * opened.freezing.late}{opened.freezing.text}",
                "$warning" if opened.freezing.late else "$muted",
            )
        )
    faults = [opened.fault] if opened.fault else []
    faults += [f"{p.group}: {p.text}" if p.group else p.text for p in (verdict.problems if verdict else ())]
    for text in faults[:2]:
        pieces.append((f"\n! {one_line(text, 300)}", "$warning"))
    if len(faults) > 2:
        pieces.append((f"\n! and {len(faults) - 2} more · Enter shows all", "$warning"))
    return Content.assemble(*pieces)


def chain_state(opened: OpenedEntry) -> Content:
    """Return whether the ledger is whole and the run as it was sealed."""
    if opened.chain:
        return Content(f"✗ {one_line(opened.chain, 200)}").stylize("$error")
    status = opened.seal.status if opened.seal is not None else ""
    if status == "intact":
        return Content("chain and seal intact ✓").stylize("$accent")
    pieces: list[Piece] = [("chain intact ✓", "$accent")]
    if opened.seal is not None:
        broken = status in ("changed", "missing")
        text = f"✗ {one_line(opened.seal.why, 200)}" if broken else status
        pieces += [(" · ", "$muted"), (text, "$error" if broken else "$muted")]
    return Content.assemble(*pieces)


class ImageFrame(Vertical):
    """Where the chosen image is drawn. Its room changes with the lines above it, when nothing else's does."""

    class Resized(Message):
        pass

    def on_resize(self) -> None:
        self.post_message(self.Resized())


class Evidence(Vertical):
    """The chosen condition's pictures: flips and McNemar, a list, and the chosen one drawn with both answers."""

    def __init__(self, drawing: Callable[[], Drawing], load: Callable[[Case], Picture], *, id: str) -> None:
        super().__init__(id=id)
        self._drawing, self._load = drawing, load
        self.head, self.rows, self.text = Said(id="case-head"), CaseRows(id="case-rows"), Said(id="case-text")
        self.columns = Said(id="case-columns")
        self.frame = ImageFrame(id="case-picture")
        self._drawn: tuple[str, int, int] | None = None
        self._wanted = ""
        self._case: Case | None = None

    def compose(self) -> ComposeResult:
        yield self.head
        with Horizontal(id="case-panes"):
            with Vertical(id="case-list"):
                yield from (self.columns, self.rows)
            with Vertical(id="case-side"):
                yield self.text
                yield self.frame

    def show(self, opened: OpenedEntry | None, gate: Gate | None, *, first: bool) -> None:
        cases = opened.deciding(gate) if opened is not None and gate is not None else ()
        self.rows.show(cases, first=first)
        self.head.say(_flips(opened, gate, cases))
        self.columns.display = bool(cases)
        self._draw_columns()
        if not cases:
            self.show_case(None)

    def show_case(self, case: Case | None) -> None:
        self._case = case
        self.text.say(case_text(case, self.text.size.width) if case is not None else Content(""))
        size = self.frame.size
        drawn = (case.after.picture_sha256, size.width, size.height) if case is not None else None
        if drawn == self._drawn and drawn is not None:
            return
        self._drawn = drawn
        in_background(self, partial(self._draw, case), "picture", exclusive=True)

    def on_resize(self) -> None:
        self.call_after_refresh(self._draw_columns)

    def on_image_frame_resized(self, event: ImageFrame.Resized) -> None:
        event.stop()
        self.show_case(self._case)

    def _draw_columns(self) -> None:
        self.columns.say(case_header(self.rows.scrollable_content_region.width or self.rows.size.width))

    async def _draw(self, case: Case | None) -> None:
        if case is None or self._drawing() == "off" or min(self.frame.size) < 2:
            await self.frame.remove_children()
            return
        view: Widget
        try:
            picture = await asyncio.to_thread(self._load, case)
        except (PictureError, OSError) as error:
            view = Said()
            view.say(Content(inert(str(error))).stylize("$warning"))
        else:
            size = self.frame.size
            view = picture_view(picture, size.width, size.height, self._drawing())
        await self.frame.remove_children()
        await self.frame.mount(view)


def _flips(opened: OpenedEntry | None, gate: Gate | None, cases: tuple[Case, ...]) -> Content:
    """`hollow: 17 of 64 wrong after · 9 won, 1 lost · McNemar p 0.0215`."""
    if gate is None or opened is None or not cases:
        return Content("No paired samples to show.").stylize("$faint")
    wrong = sum(not case.after.all_correct for case in cases)
    pieces: list[Piece] = [
        (one_line(gate.group, 20), "bold"),
        (f"  {wrong} of {len(cases)} wrong after", "$muted"),
    ]
    measures = (opened.verdict.measures or {}).get(gate.group) if opened.verdict else None
    if measures is not None:
        flips = measures.flips
        pieces.append((f" · {flips.wins} won, {flips.losses} lost · McNemar p {flips.p:.3g}", "$muted"))
    else:
        outcomes = [case.outcome for case in cases]
        pieces.append((f" · {outcomes.count('won')} won, {outcomes.count('lost')} lost · not judged", "$muted"))
    return Content.assemble(*pieces)


def case_text(case: Case, width: int = 0) -> Content:
    """Truth, before and after, each on a line, with marks. Of a long name its end, which tells it apart."""
    sign, style = OUTCOME_SIGNS[case.outcome]
    name, room = one_line(case.after.id, 60), max(8, width - len(case.outcome) - 4)
    name = name if len(name) <= room or not width else "…" + name[1 - room :]
    pieces: list[Piece] = [(f"{sign} {case.outcome}", style), (f"  {name}", "$muted")]
    pieces += [(f"\ntruth   {short_answer(case.after.truth)}", "bold")]
    for word, sample in (("before", case.before), ("after ", case.after)):
        right = sample.all_correct
        note = "" if sample.valid else "  invalid"
        pieces.append((f"\n{word}  {short_answer(sample.answer)} ", ""))
        pieces.append(("✓" if right else "✗", "$accent" if right else "$error"))
        pieces.append((f"  {sample.partial:.3g}{note}", "$muted"))
    return Content.assemble(*pieces)


class Spoken(VerticalScroll):
    """A text that scrolls."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.body = Said()

    def compose(self) -> ComposeResult:
        yield self.body

    def say(self, text: Content) -> None:
        self.body.say(text)


def claims_text(opened: OpenedEntry) -> Content:
    """Return what may and what may not be claimed, one sentence a line."""
    plan = opened.plan
    if opened.verdict is None:
        about = [plan.title, f"before: {plan.before}", f"plan by: {plan.whose}"] if plan else []
        return Content.assemble(("No claims yet\n", "bold"), ("\n".join(map(inert, about)), "$muted"))
    claims = opened.verdict.claims
    pieces: list[Piece] = []
    for title, lines, sign, style in (
        ("May be claimed", claims.may, "✓", "$accent"),
        ("May not", claims.may_not, "✗", "$error"),
    ):
        if lines:
            pieces += [("\n" if pieces else "", ""), (title, "bold")]
        for line in lines:
            pieces += ["\n", (sign, style), f" {inert(line)}"]
        pieces.append("\n" if lines else "")
    for remark in opened.verdict.remarks:
        pieces += [(f"\n· {inert(remark)}", "$muted")]
    return Content.assemble(*pieces)


def audit_text(opened: OpenedEntry) -> Content:
    """Return the audit's checklist, what is wrong first; or how to have the run audited."""
    if opened.entry.kind == "plan":
        return Content("Plans are not audited, only runs.").stylize("$faint")
    audit = opened.audit
    if audit is None:
        return Content.assemble(
            ("Not audited yet\n\n", "bold"),
            ("A audits it as a job.\nFrom a shell: ", "$muted"),
            f"vlmconsole audit {one_line(opened.entry.name, 120)}",
        )
    findings = [entry for entry in audit.get("findings", []) if isinstance(entry, dict)]
    order = {"wrong": 0, "not verifiable": 1, "ok": 2}
    findings.sort(key=lambda entry: order.get(str(entry.get("state")), 0))
    good = sum(entry.get("state") == "ok" for entry in findings)
    verdict = str(audit.get("verdict", ""))
    style = f"${sign_of(verdict).tone}"
    t = audit.get("t")
    pieces: list[Piece] = [("Audit ", "bold"), (verdict, f"bold {style}")]
    pieces.append((f"  {good} of {len(findings)} hold · {when(t if isinstance(t, float) else None)}\n", "$muted"))
    if opened.audit_altered:
        pieces.append((f"✗ {inert(opened.audit_altered)}\n", "$error"))
    for entry in findings:
        mark = painted(sign_of(str(entry.get("state"))))
        name, text = inert(str(entry.get("name", ""))), inert(str(entry.get("text", "")))
        pieces += ["\n", mark, f" {name}  ", (text, "$muted")]
    return Content.assemble(*pieces)
