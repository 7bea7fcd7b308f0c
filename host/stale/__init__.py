"""Training with bounded staleness, without torch: what to send in which round, under which scale, and the account.

docs/staleness.md says what all of this means. Everything here but the runner is pure: no clock, no thread, no socket.
"""
