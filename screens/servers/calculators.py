"""The calculators: visual tokens of a picture's size, bytes of a KV cache, each step shown as one types."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from vlmconsole.engines.profile import ServerProfile
from vlmconsole.errors import LabError
from vlmconsole.screens.theme import DIALOGS
from vlmconsole.screens.widgets.dialogs import CANCEL
from vlmconsole.screens.widgets.field import Field
from vlmconsole.vision.kv import KVShape, from_config
from vlmconsole.vision.steps import kv_steps, token_steps
from vlmconsole.vision.tokens import QWEN2_5_VL, ProcessorSettings, visual_tokens

_SIZE = re.compile(r"\s*(\d{1,6})\s*[x×*, ]\s*(\d{1,6})\s*")
LAB = KVShape(36, 2, 128, 2)  # Qwen2.5-VL-3B in BF16: where a profile's model is not on this machine
FIELDS = (
    ("size", "image", "448x336", "WIDTHxHEIGHT in pixels"),
    ("tokens", "tokens", "4096", "context length of one sequence"),
    ("sequences", "sequences", "4", "running at once (running limit B)"),
    ("layers", "layers", "", ""),
    ("kv_heads", "KV heads", "", "key-value heads, not query heads"),
    ("head_dim", "head size", "", ""),
    ("element", "bytes", "", "per element: 2 for BF16, 0.5 for a 4-bit cache"),
)


def shape_for(profile: ServerProfile | None) -> tuple[KVShape, ProcessorSettings, str]:
    """(KV shape, picture settings, where they are from) of a profile's model, else of Qwen2.5-VL-3B."""
    folder = profile.model_dir() if profile is not None else None
    own = profile.processor_settings() if profile is not None else None
    pictures = own or QWEN2_5_VL
    if profile is not None and folder is not None:
        borrowed = "" if own is not None else ", images by Qwen2.5-VL's rule"
        try:
            return from_config(folder), pictures, f"model of {profile.name}{borrowed}"
        except LabError as error:
            return LAB, pictures, f"Qwen2.5-VL-3B ({error.phrase})"
    return LAB, pictures, "Qwen2.5-VL-3B"


def worked_out(
    values: dict[str, str], pictures: ProcessorSettings, notes: tuple[str, ...], model: KVShape | None = None
) -> list[str]:
    """Return the lines of both calculations for what was typed; a wrong value is said in the place of its result.

    model: whose windows hold while as many layers are typed as it has.
    """
    lines: list[str] = []
    match = _SIZE.fullmatch(values["size"])
    try:
        if match is None:
            lines.append("image: must be WIDTHxHEIGHT, such as 448x336")
        else:
            wide, high = int(match[1]), int(match[2])
            lines.append(token_steps(wide, high, visual_tokens(wide, high, pictures), pictures))
    except LabError as error:
        lines.append(error.message)
    lines.append("")
    try:
        numbers = {name: int(values[name]) for name in ("layers", "kv_heads", "head_dim", "tokens", "sequences")}
        element = float(values["element"])
    except ValueError:
        return [*lines, "KV cache: must be whole numbers above 0 (bytes may be 0.5)"]
    if min(*numbers.values(), element) <= 0 or max(numbers.values()) > 10**9 or element > 16:
        return [*lines, "KV cache: must be whole numbers above 0 (bytes may be 0.5)"]
    windows = (0, 0)
    if model is not None and numbers["layers"] == model.layers:
        windows = (model.windowed_layers, model.window)
    shape = KVShape(numbers["layers"], numbers["kv_heads"], numbers["head_dim"], element, *windows, notes=notes)
    return [*lines, *kv_steps(shape, numbers["tokens"], numbers["sequences"])]


def twins(profile: ServerProfile | None, values: dict[str, str]) -> str:
    """Return the commands that work out the same from a shell; without one that a command has no words for."""
    shape, pictures, _ = shape_for(profile)
    folder = profile.model_dir() if profile is not None else None
    model = f" --model {shlex.quote(profile.model)}" if profile is not None and folder is not None else ""
    own = profile.model_copy(update={"processor": None}).processor_settings() if profile is not None else None
    lines = []
    if match := _SIZE.fullmatch(values["size"]):
        size = f"{match[1]}x{match[2]}"
        if pictures == QWEN2_5_VL:
            lines.append(f"vlmconsole tokens {size}")
        elif pictures == own:
            lines.append(f"vlmconsole tokens {size}{model}")
    given = {"layers": f"{shape.layers}", "kv_heads": f"{shape.kv_heads}", "head_dim": f"{shape.head_dim}"}
    given["element"] = f"{shape.bytes_per_element:g}"
    if not model or any(values[name].strip() != given_value for name, given_value in given.items()):
        flags = {"layers": "--layers", "kv_heads": "--kv-heads", "head_dim": "--head-dim", "element": "--bytes"}
        model = "".join(f" {flag} {shlex.quote(values[name].strip())}" for name, flag in flags.items())
    if all(value.strip() for value in values.values()):
        tokens, sequences = (shlex.quote(values[name].strip()) for name in ("tokens", "sequences"))
        lines.append(f"vlmconsole kv{model} --tokens {tokens} --sequences {sequences}")
    return "\n".join(lines)


class Calculators(ModalScreen[None]):
    """Both on one sheet; what is typed is worked out at once."""

    CSS_PATH: ClassVar[Any] = [DIALOGS, Path(__file__).parent / "servers.tcss"]
    BINDINGS: ClassVar[list[BindingType]] = [CANCEL]

    def __init__(self, profile: ServerProfile | None) -> None:
        super().__init__(classes="reader")
        self._profile = profile
        self._shape, self._pictures, self._from = shape_for(profile)
        self._given = {
            "layers": str(self._shape.layers),
            "kv_heads": str(self._shape.kv_heads),
            "head_dim": str(self._shape.head_dim),
            "element": f"{self._shape.bytes_per_element:g}",
        }
        if profile is not None and profile.context:
            self._given["tokens"] = str(profile.context)
        if profile is not None and profile.running_limit:
            self._given["sequences"] = str(profile.running_limit)

    def compose(self) -> ComposeResult:
        with Vertical(classes="sheet calc"):
            title = Content.assemble(("Calculators", "bold"), (f"   {self._from}   Esc back", "$muted"))
            yield Static(title, classes="title")
            for key, label, value, hint in FIELDS:
                with Horizontal(classes="field"):
                    yield Static(Content(label).stylize("$muted"), classes="label")
                    yield Field(self._given.get(key, value), compact=True, name=key)
                    yield Static(Content(hint).stylize("$faint"), classes="hint")
            yield Static(id="worked-out")
            yield Static(Content("from a shell:").stylize("$faint"))
            yield Static(id="twins")

    def on_mount(self) -> None:
        for field in self.query(Input):
            field.cursor_blink = False
        self._draw()

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.focus_next()

    def _draw(self) -> None:
        values = {field.name or "": field.value for field in self.query(Input)}
        notes = tuple(self._shape.notes)
        self.query_one("#worked-out", Static).update(
            Content("\n".join(worked_out(values, self._pictures, notes, self._shape)))
        )
        self.query_one("#twins", Static).update(Content(twins(self._profile, values)).stylize("$faint"))

    def action_cancel(self) -> None:
        self.dismiss(None)
