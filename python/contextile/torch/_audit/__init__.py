"""Checks of anybody's context parallelism against attention in fp64, and the causes of faults."""
