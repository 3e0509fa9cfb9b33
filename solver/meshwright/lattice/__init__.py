"""Every legal skeleton of a job: degrees, other choices, and meshes."""
