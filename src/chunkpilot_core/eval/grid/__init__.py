"""Strategies over tasks, policies, disturbances and latencies: `chunkpilot bench strategies`."""
