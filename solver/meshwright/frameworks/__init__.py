"""What each training framework can launch, keeps in memory and fuses."""
