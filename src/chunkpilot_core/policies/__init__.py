"""Policies that predict chunks of actions: one file per model."""
