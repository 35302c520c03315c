"""What learners share: episodes, replay, versions, the trainer."""
