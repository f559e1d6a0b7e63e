"""Requests as a run folder has them, made into what the rule looks at."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vlmconsole.measure.client.plan import MEASURED
from vlmconsole.measure.request_table import RequestTimes
from vlmconsole.text.numbers import number


def request_times(rows: Iterable[dict[str, Any]]) -> list[RequestTimes]:
    """Return the measured requests of these rows of requests.jsonl; one that failed or was never sent is a failed one.

    Those that were set aside, as their output was not the wanted one, are left out.
    """
    made, last = [], 0.0
    for row in rows:
        if row.get("phase") != MEASURED or row.get("aside"):
            continue
        sent, end = number(row.get("sent")), number(row.get("done"))
        end = number(row.get("end")) if end is None else end
        sent = last if sent is None else sent
        last = max(last, sent)
        figures = (number(row.get(key)) for key in ("ttft_s", "ttfr_s", "tpot_s", "e2e_s"))
        ttft, ttfr, tpot, e2e = figures
        failed = row.get("failure") is not None
        made.append(RequestTimes(sent, sent if end is None else end, ttft, ttfr, tpot, e2e, failed=failed))
    return made
