"""A worker's membership in a job: joining, control channel, the way to the switch, shards, an embedded switch."""
