"""Whether a prefix cache was hit: the verdict over cold and warm requests. Pure; the probe itself is a job.

A second request that is faster proves nothing by itself: it may be compilation, or a cache of another layer. So a hit
is *proven* only when the server's own count of cached tokens and the fall of TTFT agree in every pair, and
the same pairs with the cache off show no such fall. The limits below are fixed before anything is measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Literal

from vlmconsole.engines.effective import EffectiveSettings
from vlmconsole.streams.usage import Usage
from vlmconsole.text.numbers import percent

State = Literal["hit proven", "no hit", "not provable"]
COLD_SHARE = (
    0.10  # of the prefix: what a cold request may have cached (the template's own beginning) to be "about none"
)
CONTROL_SHARE = 0.5  # of the median fall with the cache on: from here on the control falls as well
LEAST_PAIRS = 5  # five equal signs in a row are chance once in 32


@dataclass(frozen=True)
class Count:
    """Cached tokens of one request, None when unknown, and where the number is from."""

    tokens: int | None
    source: str


@dataclass(frozen=True)
class ProbeRequest:
    """One request of a pair. TTFT in seconds; `usage` is what the server sent, word for word."""

    ttft_s: float | None
    prompt_tokens: int | None
    cached: Count
    failure: str | None = None
    usage: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Pair:
    """The same request twice: after a flush, and again. `flushed` False: the cold one may not have been cold."""

    cold: ProbeRequest
    warm: ProbeRequest
    flushed: bool = True
    flush_said: str = ""

    @property
    def fall_s(self) -> float | None:
        """TTFT of cold − TTFT of warm, seconds; positive when the second was faster."""
        if self.cold.ttft_s is None or self.warm.ttft_s is None:
            return None
        return self.cold.ttft_s - self.warm.ttft_s


@dataclass(frozen=True)
class CacheVerdict:
    """The verdict, its reasons (each a sentence), and the figures it rests on."""

    state: State
    reasons: list[str]
    block: int | None
    prefix_tokens: int | None
    warm_cached: list[int | None]
    cold_cached: list[int | None]
    falls_s: list[float | None]
    control_falls_s: list[float | None]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def cached_count(reported: int | None, settings: EffectiveSettings, counted: int | None = None) -> Count:
    """Return how many prompt tokens of a request came from the cache.

    reported: of its usage. counted: by how much the server's counter grew meanwhile. Null is not zero, unless
    version, cache report and radix switch were verified (`EffectiveSettings.omitted_cached_is_zero`).
    """
    if reported is not None:
        return Count(reported, "usage")
    if counted is not None:
        return Count(counted, "the server's counter")
    if settings.omitted_cached_is_zero:
        return Count(0, f"omitted: {settings.cached_rule}")
    return Count(None, settings.cached_rule)


def of_usage(
    usage: Usage, settings: EffectiveSettings, ttft_s: float | None, counted: int | None = None
) -> ProbeRequest:
    """Return a request as a stream's usage tells of it."""
    return ProbeRequest(
        ttft_s, usage.prompt_tokens, cached_count(usage.cached_tokens, settings, counted), None, usage.raw
    )


def judge(
    pairs: Sequence[Pair],
    control: Sequence[Pair],
    *,
    block: int | None,
    control_cache: bool | None = None,
    least_pairs: int = LEAST_PAIRS,
) -> CacheVerdict:
    """Return the verdict over the pairs with the cache on and those of the control with the cache off.

    block: tokens that the cache shares at least, None when unknown. control_cache: the control's
    cache switch as its server said (None: it does not say).
    """
    prefix = _prefix(pairs)
    doubts = _unusable(pairs, least_pairs, "pair") + _lengths(pairs, prefix, block)
    state: State
    if doubts or prefix is None or block is None:
        return _verdict("not provable", doubts, block, prefix, pairs, control)
    warm = [pair.warm.cached.tokens or 0 for pair in pairs]
    ceiling = COLD_SHARE * prefix
    if all(tokens <= ceiling for tokens in warm):
        most = max(warm)
        reason = f"every warm request had about nothing cached (at most {most} of {prefix} tokens)"
        return _verdict("no hit", [reason], block, prefix, pairs, control)
    wanted = prefix - block
    short = sum(tokens < wanted for tokens in warm)
    if short:
        doubts.append(f"{short} of {len(warm)} warm requests had fewer than {wanted} tokens cached ({_list(warm)})")
    slower = sum((pair.fall_s or 0.0) <= 0 for pair in pairs)
    if slower:
        doubts.append(f"in {slower} of {len(pairs)} pairs the warm request was not faster than the cold one")
    doubts += _control(pairs, control, ceiling, control_cache, least_pairs)
    state = "not provable" if doubts else "hit proven"
    proof = (
        f"all {len(pairs)} warm requests had at least {min(warm)} of {prefix} tokens cached (needed {wanted}), every"
        f" one was faster than its cold one, and with the cache off there was no such fall"
    )
    return _verdict(state, doubts or [proof], block, prefix, pairs, control)


def _prefix(pairs: Sequence[Pair]) -> int | None:
    counts = {request.prompt_tokens for pair in pairs for request in (pair.cold, pair.warm)}
    return counts.pop() if len(counts) == 1 else None


def _unusable(pairs: Sequence[Pair], least: int, noun: str) -> list[str]:
    """What is missing before anything can be judged."""
    reasons = []
    if len(pairs) < least:
        reasons.append(f"{len(pairs)} {noun}s; {least} are needed")
    failed = [request.failure for pair in pairs for request in (pair.cold, pair.warm) if request.failure]
    if failed:
        reasons.append(f"{len(failed)} requests failed: {failed[0]}")
    untimed = sum(pair.fall_s is None for pair in pairs)
    if untimed and not failed:
        reasons.append(f"{untimed} {noun}s have no TTFT, as an answer held no text")
    return reasons


def _lengths(pairs: Sequence[Pair], prefix: int | None, block: int | None) -> list[str]:
    """Doubts about flush, prompt length, block and the counts themselves."""
    reasons = []
    refused = [pair.flush_said for pair in pairs if not pair.flushed]
    if refused:
        reasons.append(
            f"{len(refused)} flushes did not take place ({refused[0]}), so a cold request may have been warm"
        )
    if pairs and prefix is None:
        reasons.append("the server did not count the same prompt length for every request")
    if block is None:
        reasons.append("the size of a cache block is not known: give `block` in the settings")
    unknown = [request.cached for pair in pairs for request in (pair.cold, pair.warm) if request.cached.tokens is None]
    if unknown:
        reasons.append(
            f"{len(unknown)} requests have no count of cached tokens, and unknown is not zero ({unknown[0].source})"
        )
    if prefix is None or block is None:
        return reasons
    if prefix - block <= COLD_SHARE * prefix:
        reasons.append(
            f"the prefix ({prefix} tokens) is too short for blocks of {block}: a hit could not be told from none"
        )
    cold = [pair.cold.cached.tokens for pair in pairs if pair.cold.cached.tokens is not None]
    if any(tokens > COLD_SHARE * prefix for tokens in cold):
        reasons.append(f"a cold request had {max(cold)} of {prefix} tokens cached already: it was not cold")
    return reasons


def _control(
    pairs: Sequence[Pair], control: Sequence[Pair], ceiling: float, cache: bool | None, least: int
) -> list[str]:
    """What keeps the control from showing that the fall comes from the cache."""
    if not control:
        return ["there is no control with the cache off, so the fall may have another cause"]
    reasons = _unusable(control, least, "control pair")
    counts = [pair.warm.cached.tokens for pair in control]
    if cache is True:
        reasons.append("the control's server says that its cache is on")
    elif cache is None and None in counts:
        reasons.append("whether the control's cache was off is not known: its server tells neither switch nor count")
    cached = [tokens for tokens in counts if tokens is not None and tokens > ceiling]
    if cached:
        reasons.append(f"the control had up to {max(cached)} tokens cached")
    falls, off = _known(pairs), _known(control)
    if falls and off and median(off) >= CONTROL_SHARE * median(falls):
        reasons.append(
            f"with the cache off the second request was faster as well (median {median(off) * 1000:.1f} ms against"
            f" {median(falls) * 1000:.1f} ms): compilation, a cache of another layer or another warm-up"
        )
    elif falls and off and _share(control) >= CONTROL_SHARE * _share(pairs):
        # Milliseconds alone would hide it where the two servers were measured under unlike load.
        reasons.append(
            "with the cache off the second request was faster as well"
            f" (median {percent(_share(control), 0)} of its TTFT against {percent(_share(pairs), 0)}):"
            " compilation, a cache of another layer or another warm-up"
        )
    return reasons


def _share(pairs: Sequence[Pair]) -> float:
    """The median fall as a share of the cold request's TTFT; 0 where none is known."""
    shares = [pair.fall_s / pair.cold.ttft_s for pair in pairs if pair.fall_s is not None and pair.cold.ttft_s]
    return median(shares) if shares else 0.0


def _known(pairs: Sequence[Pair]) -> list[float]:
    return [pair.fall_s for pair in pairs if pair.fall_s is not None]


def _list(values: Sequence[int]) -> str:
    return ", ".join(str(value) for value in values)


def _verdict(
    state: State,
    reasons: list[str],
    block: int | None,
    prefix: int | None,
    pairs: Sequence[Pair],
    control: Sequence[Pair],
) -> CacheVerdict:
    return CacheVerdict(
        state,
        reasons,
        block,
        prefix,
        [pair.warm.cached.tokens for pair in pairs],
        [pair.cold.cached.tokens for pair in pairs],
        [pair.fall_s for pair in pairs],
        [pair.fall_s for pair in control],
    )
