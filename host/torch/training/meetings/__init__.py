"""Training by local steps: workers train alone, and meet every so many steps (docs/meetings.md)."""
