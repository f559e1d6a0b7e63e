"""The cells of a measuring job: each measured, written down as it ends, and taken over when a killed job goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from vlmconsole.errors import LabError
from vlmconsole.jobs.contract import Context
from vlmconsole.measure.settings import BenchSettings
from vlmconsole.runs.folder import RunFolder
from vlmconsole.system import processes
from vlmconsole.text.counts import many
from vlmconsole.text.numbers import figure
from vlmconsole.text.sizes import size
from vlmconsole.text.times import about, latency

CELLS = "cells.jsonl"
FAILED = "failed"  # state of a cell that could not be measured
LONGEST_WHY = 480  # characters; the whole log is in the run folder


class Cells:
    """The books of one job: what is done, what that leaves to do, and how long it may take.

    planned: measured requests of each cell by name, in their order; or seconds, as `unit` says. With `open_end`
    cells are planned as they come.
    """

    def __init__(
        self, context: Context, planned: dict[str, float], unit: str = "requests", *, open_end: bool = False
    ) -> None:
        self.context, self.planned, self.unit, self.open_end = context, planned, unit, open_end
        self.done: list[dict[str, Any]] = []
        self._begun = time.monotonic()
        self._fresh = 0.0  # of `unit`, that this attempt was through with

    @property
    def names(self) -> set[str]:
        return {entry["name"] for entry in self.done}

    @property
    def total(self) -> float:
        return sum(self.planned.values())

    def before(self) -> float:
        """Requests (or seconds) of the cells that are done."""
        return sum(self.planned.get(name, 0) for name in self.names)

    @property
    def missing(self) -> list[str]:
        """The planned cells that have no figures: not measured yet, or not to be measured."""
        have = {entry["name"] for entry in self.done if entry["state"] != FAILED}
        return [name for name in self.planned if name not in have]

    def take_over(self, earlier: RunFolder, *, failed: bool = False) -> None:
        """Copy the cells that the attempt before measured, with the raw requests of each.

        failed: those that could not be measured too, where that is a result. Not when the settings differ, nor when
        every cell failed: then all are measured anew.
        """
        # Whoever killed that attempt may have left its server, which holds the device and perhaps the port.
        processes.kill_family(None, earlier.path)
        context = self.context
        if earlier.job().get("spec") != context.run.job().get("spec"):
            context.events.note(f"{earlier.name} had other settings: every cell is measured anew", "warning")
            return
        left_out = {"stopped"} if failed else {"stopped", FAILED}
        entries = [entry for entry in earlier.read_jsonl(CELLS) if entry["state"] not in left_out]
        entries = [entry for entry in entries if self.open_end or entry["name"] in self.planned]
        if all(entry["state"] == FAILED for entry in entries):
            return
        names = {entry["name"] for entry in entries}
        for row in earlier.read_jsonl("requests.jsonl"):
            if row.get("cell") in names:
                context.run.append_jsonl("requests.jsonl", row)
        for entry in entries:
            self._write({"from": earlier.name, **entry})
        context.events.note(f"taken over from {earlier.name}: {', '.join(entry['name'] for entry in entries)}")

    def measure(
        self,
        name: str,
        settings: BenchSettings,
        server: Any,
        varied: dict[str, Any],
        more: Callable[[], dict[str, Any]] = dict,
        answers: Callable[[], bool] = lambda: True,
    ) -> dict[str, Any]:
        """Measure one cell on a server that answers and write it down; `more`, asked after it, goes into its line.

        answers: whether the server does, asked after requests that failed. One that died under a cell leaves no figures
        of it, whatever came before its death: the cell counts as not measured.
        """
        from vlmconsole.measure.bench import measure
        from vlmconsole.measure.sweep import work_done

        context, before = self.context, self.before()
        context.events.emit("mark", text=f"cell {len(self.done) + 1}: {name}")

        def on_progress(now: dict[str, Any]) -> None:
            if now["phase"] != "measured":
                return
            done = now["done"] if self.unit == "requests" else min(now["elapsed_s"], self.planned.get(name, 0.0))
            context.events.progress(before + done, None if self.open_end else self.total, self.unit, name)
            context.events.metric("in_flight", now["in_flight"])
            context.events.metric("client_lag_s", now["lag_p99_ms"] / 1000, unit="s")

        try:
            summary, conditions = measure(
                settings,
                server,
                context.run,
                name=name,
                calibration=context.places.home / "calibration.json",
                on_progress=on_progress,
                stopping=context.stopping,
                extra={"cell": name},
                datasets=context.places.datasets,
            )
        except LabError as error:
            return self.failed(name, varied, error, more())
        if summary.failures and not context.stopping() and not answers():
            kinds = ", ".join(f"{count} {kind}" for kind, count in summary.failure_kinds.items())
            why = LabError(f"the server died under it ({kinds or many(summary.failures, 'request') + ' failed'})")
            return self.failed(name, varied, why, more())
        figures = summary.to_json()
        planned = settings.requests if settings.wanted_requests is not None else summary.planned
        equal, work = work_done(settings.output_tokens, planned, figures)
        # Asked to stop under it: what it has is kept, and an attempt that goes on measures it again.
        state = "valid" if summary.valid else "invalid"
        ended = summary.n + sum(summary.set_aside.values())
        if context.stopping() and (settings.wanted_requests is None or ended < planned):
            state = "stopped"
        return self._keep(
            {
                "name": name,
                "settings": varied,
                "state": state,
                "why": "stopped on request" if state == "stopped" else summary.invalid_because,
                **more(),
                "equal_work": equal,
                "work": work,
                "summary": figures,
                "conditions": conditions.model_dump(mode="json"),
            }
        )

    def failed(
        self, name: str, varied: dict[str, Any], error: LabError, more: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Keep a cell that could not be measured, with the reason."""
        why = " ".join(error.full_message.split())  # one line: the end of a log may stand in it
        if len(why) > LONGEST_WHY:
            why = f"{why[: LONGEST_WHY // 3]} … {why[-2 * LONGEST_WHY // 3 :]}"
        return self._keep({"name": name, "settings": varied, "state": FAILED, "why": why, **(more or {})})

    def _keep(self, entry: dict[str, Any]) -> dict[str, Any]:
        self._fresh += self.planned.get(entry["name"], 0)
        self._write(entry)
        context, left = self.context, None if self.open_end else self.left_s()
        context.events.progress(self.before(), None if self.open_end else self.total, self.unit, entry["name"])
        context.events.emit(
            "cell",
            name=entry["name"],
            state=entry["state"],
            why=entry["why"],
            done=len(self.done),
            total=None if self.open_end else len(self.planned),
            left_s=left,
        )
        of = "" if self.open_end else f" of {len(self.planned)}"
        eta = f"cell {len(self.done)}{of}" + (f", about {about(left)} left" if left else "")
        level = "info" if entry["state"] == "valid" else "warning"
        context.events.note(f"{entry['name']}: {entry['state']} · {line(entry)} · {eta}", level)
        return entry

    def _write(self, entry: dict[str, Any]) -> None:
        self.done.append(entry)
        context = self.context
        context.run.append_jsonl(CELLS, entry)
        context.run.write_json(
            "conditions.json", {cell["name"]: cell["conditions"] for cell in self.done if "conditions" in cell}
        )

    def left_s(self) -> float | None:
        """Seconds still to go at this attempt's speed, server starts included; None before its first cell ended."""
        if not self._fresh:
            return None
        return round((time.monotonic() - self._begun) / self._fresh * (self.total - self.before()), 1)


def line(entry: dict[str, Any]) -> str:
    """Return a cell's figures in words."""
    summary: dict[str, Any] = entry.get("summary") or {}
    ttft, speed = summary.get("ttft_s"), summary.get("throughput_tok_s")
    parts: Sequence[str] = (
        f"TTFT p50 {latency(ttft['p50'])} p95 {latency(ttft['p95'])}" if ttft else "",
        f"{figure(speed)} tok/s" if speed is not None else "",
        memory_text(entry),
        entry.get("work") or "",
        entry.get("why") or "",
    )
    return " · ".join(filter(None, parts))


def memory_text(entry: dict[str, Any]) -> str:
    """Return a cell's memory peak in words, "" where none was sampled."""
    peak: dict[str, Any] = entry.get("memory") or {}
    return f"{peak['kind']} peak {size(peak['peak_bytes'])}" if peak.get("peak_bytes") else ""
