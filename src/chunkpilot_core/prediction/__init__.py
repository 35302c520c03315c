"""What a chunk will do: judged before it runs."""
