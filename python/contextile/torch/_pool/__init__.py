"""Attention of several replicas and stages in one pool: ping-pong, pipelines."""
