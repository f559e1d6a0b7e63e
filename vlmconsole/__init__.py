"""The lab, importable without Textual and without torch."""

__version__ = "0.1.0"
