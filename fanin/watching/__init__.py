"""Looking at a running job: rates and findings from a switch's statistics, and metrics for Prometheus.

See docs/watching.md.
"""
