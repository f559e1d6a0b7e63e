"""Kept conversations: SQLite for the words, content-addressed files for the pictures."""
