"""Layouts of data-parallel and pipeline groups over hosts with unlike links: `fanin plan` (docs/advise.md)."""
