"""Files that hwloc prints."""
