"""Every word for how something is has one sign of one cell, and those that mean trouble do not look well."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest
from rich.cells import cell_len
from rich.style import Style

from vlmconsole import doctor
from vlmconsole.client import adapter_effect, sight
from vlmconsole.data import findings
from vlmconsole.desks.queue import VERDICTS
from vlmconsole.gauges import board
from vlmconsole.ledger import chain
from vlmconsole.queue.model import STATES
from vlmconsole.screens.theme import painted
from vlmconsole.servers import status
from vlmconsole.text.signs import GOOD, RICH_STYLES, SIGNS, UNSURE, sign_of

WORDS = {
    "jobs": STATES,
    "verdicts": VERDICTS,
    "servers": (*get_args(status.State), "not reachable", "key refused", "waiting"),
    "checks": get_args(doctor.State) + get_args(findings.State),
    "gauges": get_args(board.State),
    "seals": get_args(get_type_hints(chain.SealVerdict)["status"]),
    "pictures": get_args(get_type_hints(sight.Sight)["state"]),
    "adapters": get_args(get_type_hints(adapter_effect.Effect)["state"]),
}


@pytest.mark.parametrize("kind", WORDS)
def test_each_word_has_a_sign(kind: str) -> None:
    assert WORDS[kind] and set(WORDS[kind]) <= SIGNS.keys()


def test_a_sign_takes_one_cell_and_can_be_painted_everywhere() -> None:
    for shown in SIGNS.values():
        assert cell_len(shown.mark) == 1
        Style.parse(shown.rich)
        assert painted(shown) == (shown.mark, f"${shown.tone}")
    assert set(RICH_STYLES) >= {shown.tone for shown in SIGNS.values()}


def test_trouble_is_told_by_more_than_its_colour() -> None:
    for word in ("failed", "FAIL", "INVALID", "ended", "wrong", "changed", "missing", "CANNOT JUDGE", "lost"):
        assert sign_of(word).mark != GOOD.mark and sign_of(word).tone in ("error", "warning")
    assert sign_of("never heard of") == UNSURE
