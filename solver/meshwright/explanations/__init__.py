"""Why a plan is rejected, what would fix it, and at what price."""
