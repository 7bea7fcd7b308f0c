"""Jobs of containers that know nothing of each other: how they become ranks, and how the job's end is told to all."""
