"""The controllers of a switch, of jobs and of leaves: requests, events and times come in, answers are fetched."""
