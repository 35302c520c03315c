"""Networks that policies are made of."""
