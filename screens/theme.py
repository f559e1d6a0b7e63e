"""Our two themes: greys, one accent, one warning, one failure. Every colour on a screen comes from here."""

from __future__ import annotations

from pathlib import Path

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import Monochrome
from textual.theme import Theme

from vlmconsole.text.signs import Sign

#: The style sheet of every window over a screen; each names it, so that it is read when the first one opens.
DIALOGS = Path(__file__).parent / "dialogs.tcss"


def painted(sign: Sign) -> tuple[str, str]:
    """Return a sign with its style, as Textual's contents take it."""
    return sign.mark, f"${sign.tone}" if sign.tone else ""


DARK = Theme(
    name="vlmconsole-dark",
    primary="#6cc5b0",
    secondary="#6cc5b0",
    accent="#6cc5b0",
    warning="#e3b25c",
    error="#ef7d76",
    success="#6cc5b0",
    foreground="#d8dbe0",
    background="#121417",
    surface="#181b1f",
    panel="#22262b",
    dark=True,
    variables={
        "muted": "#8b929c",
        "faint": "#646c77",
        "line": "#272b31",
        "footer-background": "#121417",
        "footer-key-foreground": "#6cc5b0",
        "footer-description-foreground": "#8b929c",
        "input-cursor-background": "#6cc5b0",
        "input-cursor-foreground": "#121417",
        "input-selection-background": "#6cc5b0 28%",
        "screen-selection-background": "#6cc5b0 28%",
        "block-cursor-background": "#22262b",
        "block-cursor-foreground": "#d8dbe0",
        "block-cursor-text-style": "none",
        "scrollbar": "#2a2f35",
        "scrollbar-hover": "#3a4048",
        "scrollbar-active": "#4c525b",
        "scrollbar-background": "#121417",
        "scrollbar-background-hover": "#121417",
        "scrollbar-background-active": "#121417",
        "scrollbar-corner-color": "#121417",
        "border": "#272b31",
        "border-blurred": "#272b31",
    },
)

LIGHT = Theme(
    name="vlmconsole-light",
    primary="#0b6e5f",
    secondary="#0b6e5f",
    accent="#0b6e5f",
    warning="#8a5a00",
    error="#b3261e",
    success="#0b6e5f",
    foreground="#22262b",
    background="#fbfbfa",
    surface="#f1f1ef",
    panel="#e6e6e3",
    dark=False,
    variables={
        "muted": "#666c75",
        "faint": "#8b9199",
        "line": "#dfdfdb",
        "footer-background": "#fbfbfa",
        "footer-key-foreground": "#0b6e5f",
        "footer-description-foreground": "#666c75",
        "input-cursor-background": "#0b6e5f",
        "input-cursor-foreground": "#fbfbfa",
        "input-selection-background": "#0b6e5f 20%",
        "screen-selection-background": "#0b6e5f 20%",
        "block-cursor-background": "#e6e6e3",
        "block-cursor-foreground": "#22262b",
        "block-cursor-text-style": "none",
        "scrollbar": "#dcdcd8",
        "scrollbar-hover": "#c8c8c3",
        "scrollbar-active": "#b4b8bd",
        "scrollbar-background": "#fbfbfa",
        "scrollbar-background-hover": "#fbfbfa",
        "scrollbar-background-active": "#fbfbfa",
        "scrollbar-corner-color": "#fbfbfa",
        "border": "#dfdfdb",
        "border-blurred": "#dfdfdb",
    },
)


class Greys(Monochrome):
    """What NO_COLOR asks for. Textual's own (8.2.8) fails on text without a style, of which a plot has some."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Return the segments in greys."""
        plain = Style.null()
        return super().apply([Segment(text, style or plain, control) for text, style, control in segments], background)
