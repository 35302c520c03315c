"""What policies share: inputs, checkpoints, demonstrations, training."""
