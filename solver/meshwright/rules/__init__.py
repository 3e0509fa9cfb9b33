"""The rules that a plan must keep: the framework's, the cluster's, the user's own."""
