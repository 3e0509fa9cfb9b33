"""The options of training frameworks by name, and what they say of a plan and a job."""
