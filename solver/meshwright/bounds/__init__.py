"""Lower and upper bounds on step time, and the branch and bound that they allow."""
