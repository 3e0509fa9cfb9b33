"""The rules that a plan must keep: those of framework, cluster, pins and limits."""
