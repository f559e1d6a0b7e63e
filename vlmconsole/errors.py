"""The one base of every error that is meant for a person."""

from typing import Self


class LabError(Exception):
    """Something a person can understand and mend: `message` says what happened, `hint` what to do about it.

    Commands print it as one line and exit with `exit_status` (1: the thing asked for failed, 2: bad usage, 3: cannot
    judge); screens show it where it happened. `code` names the kind of failure for programs and tests ("port-taken"),
    whatever the wording; "" where the class says enough. Anything else that escapes is a fault of ours and goes to
    the log.
    """

    exit_status = 1
    code = ""

    def __init__(self, message: str, hint: str = "", *, code: str = "") -> None:
        super().__init__(message)
        self.message, self.hint, self.code = message, hint, code or self.code

    @property
    def phrase(self) -> str:
        """The message without its full stop, for the inside of another sentence."""
        return self.message.removesuffix(".")

    @property
    def full_message(self) -> str:
        """Message and hint as one sentence or two, for where there is one line for both."""
        if not self.hint:
            return self.message
        return f"{self.message}{'' if self.message.endswith(('.', '!', '?', ':', ';')) else ';'} {self.hint}"

    def named(self) -> Self:
        """Return the same, of a thing that was named and is not there: bad usage, whatever kind of thing it is."""
        self.exit_status = 2
        return self


def refusal(error: LabError | OSError) -> str:
    """Return what cannot be done, in words for a person: the lab's own, or those of the machine (no space, no
    permission).
    """
    if isinstance(error, LabError):
        return error.full_message
    where = f": {error.filename}" if error.filename else ""
    return f"{error.strerror or error}{where}"
