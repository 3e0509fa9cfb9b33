"""Why a plan wins, loses or is rejected; what would repair it, and at what price."""
