"""What carries the checks: limiter, state machine, targets, executed rows, and the guard."""
