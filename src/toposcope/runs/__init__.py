"""Many runs: a grid of them, a store that survives interruptions, and processes or a Ray cluster to do the work."""
