"""What a few hundred commands print, recorded before a change and compared after it."""
