"""Why an answer took what it took: the numbers of one answer with what stands behind them. Rows are pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vlmconsole.client.lag import LAG_LIMIT
from vlmconsole.engines.adapter_choice import UNKNOWN
from vlmconsole.screens.chat.columns import PanelHeading, PanelRow
from vlmconsole.text.counts import many
from vlmconsole.text.numbers import decimal
from vlmconsole.text.times import latency

Answer = Mapping[str, Any]


def timing_rows(answer: Answer) -> list[PanelRow | PanelHeading]:
    timing: Mapping[str, Any] = answer.get("timing") or {}
    rows: list[PanelRow | PanelHeading] = []
    if timing.get("ttfr_s") is not None:  # what it waited for before the text was no wait for the first token
        rows.append(PanelRow("first reasoning", latency(timing["ttfr_s"])))
    rows += [PanelRow("TTFT", _ttft(answer), "bold"), PanelRow("time per token", latency(timing.get("tpot_s")))]
    if timing.get("tpot_why"):
        rows.append(PanelRow("", str(timing["tpot_why"]), "$muted"))
    rows.append(PanelRow("total time", latency(timing.get("e2e_s"))))
    if timing.get("output_tokens_per_s") is not None:
        rows.append(PanelRow("tokens/s (incl. TTFT)", f"{timing['output_tokens_per_s']:.1f}"))
    return rows


def _ttft(answer: Answer) -> str:
    ttft = (answer.get("timing") or {}).get("ttft_s")
    over_a_wire = (answer.get("conditions") or {}).get("route") in ("tunnel", "network")
    return latency(ttft) + (", includes network" if ttft is not None and over_a_wire else "")


def token_rows(answer: Answer) -> list[PanelRow | PanelHeading]:
    usage: Mapping[str, Any] = answer.get("usage") or {}
    prompt, out, cached = (usage.get(name) for name in ("prompt_tokens", "completion_tokens", "cached_tokens"))
    observed = [sight.get("observed") for sight in answer.get("vision") or ()]
    rows: list[PanelRow | PanelHeading] = []
    if prompt is None:
        rows.append(PanelRow("tokens in", "unknown (no usage sent)", "$muted"))
    elif observed and None not in observed:
        image = sum(observed)
        rows.append(PanelRow("tokens in", f"{image} image + {prompt - image} text"))
    else:
        rows.append(PanelRow("tokens in", f"{prompt}"))
    rows.append(
        PanelRow(
            "tokens out",
            "unknown" if out is None else f"{out} (reported by server)",
            "" if out is not None else "$muted",
        )
    )
    if usage.get("reasoning_tokens"):
        rows.append(PanelRow("", f"{usage['reasoning_tokens']} of them reasoning"))
    if answer.get("questions_left_out"):
        rows.append(PanelRow("not sent", f"{many(answer['questions_left_out'], 'earlier question')}", "$warning"))
    rows.append(PanelRow("finish", str(answer.get("finish_reason") or "not reported")))
    # An absent number is not a zero: the server did not say.
    rows.append(
        PanelRow(
            "cached", "not reported" if cached is None else many(cached, "token"), "$muted" if cached is None else ""
        )
    )
    return rows


def adapter_rows(answer: Answer) -> list[PanelRow | PanelHeading]:
    """Return the adapter that answered, with the start of its weights' hash; nothing for the base alone."""
    conditions: Mapping[str, Any] = answer.get("conditions") or {}
    name, _, digest = str(conditions.get("adapter") or "").partition(" sha256:")
    if not name:
        return []
    if name == UNKNOWN:
        return [PanelRow("adapter", "unknown (chosen by the server)", "$muted")]
    label = f"{name} · {digest[:8]}…" if digest else f"{name} · hash unknown"
    whole = [str(note) for note in conditions.get("notes") or () if str(note).startswith(f"adapter {name}")]
    notes = [note.removeprefix(f"adapter {name}").lstrip(": ") for note in whole]
    # What was looked at and found is no warning; all else about an adapter is.
    return [
        PanelRow("adapter", label, "$accent"),
        *(PanelRow("", note, "" if note.startswith("effect verified") else "$warning") for note in notes),
    ]


def asked_with(answer: Answer) -> dict[str, Any]:
    """Return how an answer was asked for, in the words of its request."""
    request: Mapping[str, Any] = answer.get("request") or {}
    system = any(message.get("role") == "system" for message in request.get("messages") or ())
    return {"system": system, **{name: request.get(name) for name in ("temperature", "max_tokens", "seed", "top_p")}}


def unusual_rows(asked: Mapping[str, Any], *, temperature: float, max_tokens: int) -> list[PanelRow]:
    """Return what of it is not as it is without a setting of the conversation's own."""
    rows = []
    if asked.get("temperature") not in (None, temperature):
        rows.append(PanelRow("temperature", f"{asked['temperature']:g}"))
    if asked.get("max_tokens") not in (None, max_tokens):
        rows.append(PanelRow("max tokens", decimal(int(asked["max_tokens"]))))
    rows += [
        PanelRow(label, f"{asked[name]:g}" if isinstance(asked[name], float) else str(asked[name]))
        for name, label in (("seed", "seed"), ("top_p", "top-p"))
        if asked.get(name) is not None
    ]
    return rows + ([PanelRow("system prompt", "set")] if asked.get("system") else [])


def client_rows(answer: Answer) -> list[PanelRow | PanelHeading]:
    lag = (answer.get("client") or {}).get("lag_p99_ms")
    if lag is None:
        return []
    late = lag > LAG_LIMIT
    rows: list[PanelRow | PanelHeading] = [
        PanelRow("client lag p99", f"{lag:.0f} ms" if late else f"{lag:.1f} ms", "$warning" if late else "")
    ]
    return [*rows, PanelRow("", "too high, timings unreliable", "$warning")] if late else rows


def setting_rows(settings: Mapping[str, Any]) -> list[PanelRow | PanelHeading]:
    """Return what the server says it runs with; only what was read back is shown here."""
    if not settings:
        return []
    reported = {str(name): value for name, value in settings.items() if value is not None}  # null: it is not set
    return [
        PanelHeading("server-reported settings"),
        *(PanelRow(name, _said(value)) for name, value in reported.items()),
    ]


def _said(value: Any) -> str:
    if value is None:
        return "not reported"
    if isinstance(value, bool):
        return "on" if value else "off"
    return decimal(value) if isinstance(value, int) else str(value)


def proofs(answer: Answer) -> list[dict[str, Any]]:
    """Return the proof of each picture, with the subtraction that gave it: prompt tokens and text tokens of the
    request.
    """
    sights = [dict(sight) for sight in answer.get("vision") or ()]
    prompt = (answer.get("usage") or {}).get("prompt_tokens")
    seen = [sight.get("observed") for sight in sights]
    if prompt is not None and seen and None not in seen:
        text = prompt - sum(int(count or 0) for count in seen)
        for sight in sights:
            together = f" over {len(sights)} images" if len(sights) > 1 else ""
            sight["sum"] = f"({prompt} prompt − {text} text{together})"
    return sights


def sight_lines(sight: Mapping[str, Any]) -> tuple[list[str], str]:
    """Proof of sight beside a picture: lines, and a style. A tick needs two numbers that were got independently."""
    state, expected, observed = sight.get("state"), sight.get("expected"), sight.get("observed")
    digest = f"sha {str(sight.get('sha256') or '')[:4]}…"
    taken = str(sight.get("sum") or "")
    if state == "equal":
        return [f"✓ {observed} image tokens (as expected)", f"{taken} {digest}".strip()], "$accent"
    if state == "different":
        label = "✗ image tokens differ"
        if observed is not None:
            label = f"✗ {observed} image tokens" + (f": {expected} expected" if expected is not None else "")
        return [label, str(sight.get("why") or ""), f"{taken} {digest}".strip()], "$error"
    wanted = f", {expected} expected" if expected is not None else ""
    return [f"can't verify image tokens{wanted}", str(sight.get("why") or ""), digest], "$warning"


def summary(answer: Answer) -> str:
    """Return one quiet line under an answer, for when the panel is not on the screen."""
    timing: Mapping[str, Any] = answer.get("timing") or {}
    usage: Mapping[str, Any] = answer.get("usage") or {}
    parts = []
    if timing.get("ttfr_s") is not None:
        parts.append(f"reasoning from {latency(timing['ttfr_s'])}")
    if timing.get("ttft_s") is not None:
        parts.append(f"TTFT {_ttft(answer)}")
    elif answer.get("streamed") is False and timing.get("e2e_s") is not None:
        parts.append(f"total {latency(timing['e2e_s'])}, not streamed")
    if timing.get("tpot_s") is not None:
        parts.append(f"{latency(timing['tpot_s'])} per token")
    if usage.get("completion_tokens") is not None:
        out = usage["completion_tokens"]
        parts.append(f"{out} token{'' if out == 1 else 's'}")
    return " · ".join(parts)
