"""One answer with everything that is known of it: words, times, tokens, proof of sight, conditions, remarks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vlmconsole.client.sight import Sight
from vlmconsole.engines.adapter_choice import SelectedAdapter
from vlmconsole.engines.effective import EffectiveSettings
from vlmconsole.engines.profile import ServerProfile
from vlmconsole.engines.readback import adapter_label
from vlmconsole.engines.registry import find_engine
from vlmconsole.models.messages import system_sha256
from vlmconsole.runs.conditions import Conditions
from vlmconsole.streams.ending import Remark, answered_by
from vlmconsole.streams.stream import StreamResult
from vlmconsole.streams.timing import Timing

CLOCK = "request sent → first text piece / [DONE]; connection open and picture bytes ready before"


@dataclass(slots=True)
class Answer:
    """What came of one question. `result.ended` tells whether it is whole; `result.error` says why not."""

    result: StreamResult
    timing: Timing
    vision: list[Sight] = field(default_factory=list)
    conditions: Conditions = field(default_factory=Conditions)
    request: dict[str, Any] = field(default_factory=dict)
    cached_tokens: int | None = None
    """As the server reported them; an omission counts as zero only under a verified rule (`conditions.notes`)."""
    remarks: list[Remark] = field(default_factory=list)
    """What has to be said besides its words: see `engines.ending`."""
    body_sha256: str = ""
    """SHA-256 (hex) of the request's body as it was sent, byte for byte; "" where none was."""

    @property
    def text(self) -> str:
        return self.result.text

    @property
    def ok(self) -> bool:
        """True for an answer that came to its end, and of which nothing was lost on the way."""
        return self.result.ended == "done" and not self.result.loss

    def to_json(self) -> dict[str, Any]:
        """Return the shape of `vlmconsole chat --json`; times in seconds, null for what is unknown."""
        usage = self.result.usage
        return {
            "text": self.result.text,
            "reasoning": self.result.reasoning or None,
            "finish_reason": self.result.finish_reason,
            "ended": self.result.ended,
            "error": self.result.error,
            "usage": {
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
                "cached_tokens": self.cached_tokens,
                "reasoning_tokens": usage.reasoning_tokens,
            },
            "timing": {
                "ttft_s": self.timing.ttft_s,
                "tpot_s": self.timing.tpot_s,
                "e2e_s": self.timing.e2e_s,
                "output_tokens_per_s": self.timing.output_tokens_per_s,
                "ttfr_s": self.timing.ttfr_s,
                "tpot_why": self.timing.tpot_why or None,
            },
            "streamed": self.result.streamed,
            "closed_by_us": self.result.closed_by_us,
            "unreadable": self.result.unreadable + self.result.garbled,
            "models": self.result.models,
            "remarks": [remark.to_json() for remark in self.remarks],
            "vision": [sight.to_json() for sight in self.vision],
            "conditions": self.conditions.known(),
        }


def conditions_of(
    profile: ServerProfile,
    settings: EffectiveSettings,
    model: str,
    result: StreamResult,
    sights: list[Sight],
    record: dict[str, Any],
    adapter: SelectedAdapter | None,
    notes: tuple[str, ...],
    prompt: Mapping[str, str],
) -> Conditions:
    """Return the conditions of one answer. model: the server's name for it; record: the request as it is kept.

    prompt: hashes of the served model's prompt form (`prompt.prompt_facts`).
    """
    # The name in the answer, where it is another than was asked for: that model is what was measured.
    named, asked = answered_by(result.models, record.get("model"))
    cache = None if settings.prefix_cache is None else ("on" if settings.prefix_cache else "off")
    return Conditions(
        hardware=profile.hardware or (settings.this_machine if profile.loopback else None),
        engine=find_engine(profile.engine).label,
        engine_version=settings.version,
        model=named if asked else model or None,
        asked_model=asked,
        precision=settings.precision or profile.precision or None,
        quantization=settings.quantization,
        adapter=adapter_label(profile, settings, adapter),
        image=", ".join(f"{s.sent_size[0]}x{s.sent_size[1]}" for s in sights) or None,
        input_tokens=result.usage.prompt_tokens,
        output_tokens=result.usage.completion_tokens,
        client_concurrency=1,
        running_limit=settings.running_limit,
        cache=cache,
        warm_up="none: a single question",
        clock=CLOCK,
        n=1,
        temperature=record.get("temperature"),
        top_p=record.get("top_p"),
        seed=record.get("seed"),
        max_tokens=record.get("max_tokens"),
        system_sha256=system_sha256(record.get("messages", ())),
        **({} if asked else prompt),
        route=profile.route,
        client="vlmconsole chat (httpx)",
        settings=settings.values or None,
        notes=notes,
    )
