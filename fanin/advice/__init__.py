"""`fanin advise`: measures links between the ranks of a job, predicts steps, recommends settings (docs/advise.md)."""
