"""The rooms of the house from the ground up, in one strict order.

A room imports only from itself and from rooms that stand before it in this list.
`tests/house/test_floors.py` holds every file to it. The table in CONTRIBUTING.md is made from it:
`python tests/lab/rooms.py` writes it anew.
"""

from __future__ import annotations

from pathlib import Path

ROOMS = {
    "errors": "the base of every error meant for a person: message, hint, code, exit status",
    "text": "numbers, sizes, times, signs, wrong settings and foreign text made into what is shown; imports are cheap",
    "assets": "the bundled model, sample images, the page of `vlmconsole web`",
    "system": "what the operating system gives: processes, sockets, locks, files and bodies within limits",
    "presets": "shipped presets: jobs, flows, gates, servers, environments",
    "runs": "run folders, events, conditions, where a lab home keeps its things",
    "lab": "the lab home and its settings",
    "vision": "image files to pixels, image tokens, the KV cache's size",
    "scoring": "answers, scorers, rewards, intervals, distributions",
    "models": "what a model folder is; its chat template, prompts and weights, without torch",
    "limits": "what a device can do at most, and the least time that a model's answer takes on it",
    "counting": "one generator of examples: scenes of shapes and questions about them",
    "data": "datasets: import, recipes, rows, splits, generations, checks",
    "devices": "device locks, shared by all users of a machine",
    "streams": "a chat stream read: events, pieces, usage, endings, times",
    "chats": "stored conversations",
    "remote": "other machines over SSH",
    "engines": "what each engine needs: profile, flags, settings read back, adapters",
    "servers": "where a server lives and how it is reached: here, far, given",
    "client": "one question asked and timed, with proof of what the server saw",
    "training": "models in memory, SFT, GRPO, verl, adapters",
    "toy": "the making of the bundled model",
    "ledger": "the chain of hashes, and freezing",
    "gates": "plans, binding, metrics, evidence, verdicts",
    "gauges": "what host, GPU, server and client do now",
    "measure": "the load client, sweeps, tuning, cache probes, calibration",
    "compare": "whether two runs may be compared, and how they differ",
    "evaluation": "paired evaluations: preflight, plan, answers, resume",
    "audit": "what a run claims, recomputed from its files; replay",
    "reports": "runs as HTML, CSV and JSON",
    "jobs": "the worker, and one module per kind of job",
    "queue": "store, schedule, supervisor",
    "desks": "what screens and commands both read: queue, servers, gates, runs, forms",
    "drawings": "a run drawn in lines of styled text, alike for screens and commands",
    "doctor": "what is installed, missing, or at the wrong version",
    "screens": "what a person sees; holds no rule of the lab, never imports `jobs`",
    "app": "wires screens to the lab",
    "cli": "the plain twin of every screen",
    "__main__": "`python -m vlmconsole`",
}
LEVEL = {name: level for level, name in enumerate(ROOMS)}

BEGIN, END = "<!-- rooms: made by tests/lab/rooms.py -->\n", "<!-- end of rooms -->\n"


def table() -> str:
    """Return CONTRIBUTING's table of rooms, ground floor first."""
    lines = [f"| `{name}` | {inside} |" for name, inside in ROOMS.items()]
    return "\n".join(["| room | what lives there |", "|---|---|", *lines, ""])


def with_table(page: str) -> str:
    """Return `page` with the table between its marks."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + table() + END + rest.partition(END)[2]


if __name__ == "__main__":
    contributing = Path(__file__).resolve().parents[2] / "CONTRIBUTING.md"
    contributing.write_text(with_table(contributing.read_text("utf-8")), "utf-8")
