"""What every strategy stands on: queue, plan time, requests, merges, starvation, statistics."""
