"""The person's own keys, from the settings' `[keys]`: an act's id, and the keys that it shall have."""

from __future__ import annotations

from collections.abc import Mapping

from textual.actions import parse
from textual.app import App
from textual.binding import Binding
from textual.keys import Keys, format_key, key_to_character

from vlmconsole.errors import LabError
from vlmconsole.screens.keys import KEYS, Key, keys_of, shown_keys, use_in_text, written
from vlmconsole.screens.table import SCREENS
from vlmconsole.text.plain import one_line

#: Enter sends whatever the settings say: the text area of the question takes it before any binding.
FIXED = frozenset({"chat.send"})
MODIFIERS = frozenset({"ctrl", "shift", "alt", "meta", "super", "hyper"})


def keys_by_id() -> dict[str, Key]:
    """Return every key of every screen, by its act's id."""
    return {key.id: key for entry in SCREENS for key in keys_of(entry.name)}


def checked(wanted: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """(the keymap of all entries that can be used, what is wrong with each of the others)."""
    known = keys_by_id()
    keymap: dict[str, str] = {}
    problems: list[str] = []
    for act, keys in wanted.items():
        try:
            if act not in known or act in FIXED:
                raise LabError(_unknown(act, known))
            keymap[act] = _names(keys, known[act])
        except LabError as error:
            problems.append(f"keys.{one_line(act, 40)}: {error.message}")
    while clash := _clash(keymap):
        act, other, key = clash
        problems.append(f"keys.{act}: {written(key)} is already the key of {other}; change that one too")
        del keymap[act]
    return keymap, problems


def _unknown(act: str, known: Mapping[str, Key]) -> str:
    if act in FIXED:
        return "this key cannot be changed"
    from difflib import get_close_matches

    near = get_close_matches(act, known, 1)
    return f"unknown name; did you mean {near[0]}?" if near else "unknown name; vlmconsole keys lists them"


def _names(keys: str, key: Key) -> str:
    """Textual's names of `keys` ("Ctrl+E", "/,f"). Raises LabError for what is no key, or cannot be this one's."""
    names = []
    for text in (part.strip() for part in keys.split(",")):
        *modifiers, base = text.split("+") if len(text) > 1 else [text]
        if len(base) > 1:
            base = base.lower()
        name = "+".join([*(modifier.lower() for modifier in modifiers), base.lower() if modifiers else base])
        if not base or not MODIFIERS.issuperset(name.split("+")[:-1]) or not _is_key(base):
            raise LabError(f"“{one_line(text, 20)}” is not a key; use x, X, f9, ctrl+e, space, pagedown …")
        name = next(iter(Binding.make_bindings([Binding(name, "")]))).key
        if key.place != "reading" and (key_to_character(name) or len(format_key(name)) == 1):
            raise LabError(f"{written(name)} types text in the message box; use Ctrl or F7 to F12")
        names.append(name)
    return ",".join(names)


def _is_key(base: str) -> bool:
    return len(base) == 1 or base in {str(key.value) for key in Keys} or len(format_key(base)) == 1


def _clash(keymap: Mapping[str, str]) -> tuple[str, str, str] | None:
    """(an act of the keymap, the act that has its key already on the same screen, the key)."""
    for entry in SCREENS:
        keys = keys_of(entry.name)
        taken: dict[str, list[Key]] = {}
        for number in range(1, len(SCREENS) + 1):
            go = Key(f"f{number},{number}", "", "", "", "", name=SCREENS[number - 1].name, place="anywhere")
            taken |= {key: [go] for key in go.keys.split(",")}
        for key in sorted(keys, key=lambda key: key.id in keymap):
            for name in keymap.get(key.id, key.keys).split(","):
                for other in taken.setdefault(name, []):
                    if {key.place, other.place} != {"composer", "reading"} and key.id in keymap:
                        return key.id, other.id, name
                taken[name].append(key)
    return None


class OwnKeys(App[None]):
    """An app whose keys a person may change, and whose keys of the version before still work."""

    #: Binding id → the keys that the settings give it, comma-separated.
    remapped: Mapping[str, str] = {}

    def use_keys(self, wanted: Mapping[str, str]) -> None:
        """Honour what can be honoured of the settings' keys, and name the rest."""
        self.remapped, problems = checked(wanted)
        self.set_keymap(dict(self.remapped))
        use_in_text(self.remapped)
        for problem in problems:
            self.notify(problem, severity="warning", markup=False, timeout=15)

    async def action_old_key(self, old: str, now: str, action: str) -> None:
        """Do what the key did in the version before; `now` is the act's id, or its key where it has none."""
        _, name, parameters = parse(action)
        if not self.screen.check_action(name, parameters):
            return
        key = next((shown_keys(key, self.remapped) for key in KEYS if key.id == now), now)
        self.notify(f"{old} is now {key}; the old key will be removed in the next version", markup=False)
        await self.run_action(action, self.screen)
