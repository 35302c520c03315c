"""Other people's data as bags of ours: a mapping file says what is what."""
